/** COCO's run lengths as pixels of a canvas. */

import { colorOf } from "./drawing.js";

const OPACITY = 0.45;
const FIRST = 48; // of the characters, which hold five bits each, a sign, and whether more follow

/** How many pixels are outside, inside, outside, … the mask, down its columns. */
export function runLengths(text) {
  const counts = [];
  for (let at = 0; at < text.length; ) {
    let value = 0;
    let shift = 0;
    let code;
    do {
      code = text.charCodeAt(at++) - FIRST;
      value |= (code & 31) << shift;
      shift += 5;
    } while (code & 32);
    if (code & 16 && shift < 32) value |= -1 << shift;
    if (counts.length > 2) value += counts[counts.length - 2];
    counts.push(value);
  }
  return counts;
}

/** The masks of `detections`, of a picture of width and height, laid over it; the best lies on top. */
export function drawMasks(canvas, detections, { width, height }) {
  const found = detections.filter((detection) => detection.segmentation);
  if (!found.length) return;
  const overlay = new OffscreenCanvas(canvas.width, canvas.height);
  const context = overlay.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  for (const { segmentation, class_id } of found.toReversed()) {
    context.fillStyle = colorOf(class_id);
    paint(image, runLengths(segmentation.counts), [width, height], Number.parseInt(context.fillStyle.slice(1), 16));
  }
  context.putImageData(image, 0, 0);
  const target = canvas.getContext("2d");
  target.globalAlpha = OPACITY;
  target.drawImage(overlay, 0, 0);
  target.globalAlpha = 1;
}

/** Every pixel of the image takes the nearest one of the mask; both go down their columns, so that one pass is enough. */
function paint(image, counts, [width, height], color) {
  let run = 0;
  let end = counts[0];
  for (let x = 0; x < image.width; x++) {
    const column = Math.floor(((x + 0.5) * width) / image.width) * height;
    for (let y = 0; y < image.height; y++) {
      const at = column + Math.floor(((y + 0.5) * height) / image.height);
      while (at >= end) end += counts[++run];
      if (run % 2) image.data.set([color >> 16, (color >> 8) & 255, color & 255, 255], 4 * (y * image.width + x));
    }
  }
}
