/** Pictures, boxes and colors on a canvas. */

const LONGEST_SIDE = 1280;
const SMALL_SIDE = 480; // a smaller picture is enlarged by whole pixels, so that what is drawn on it can be read
const COLORS_SIDE = 448;
const GOLDEN_ANGLE = 137.508; // neighboring class ids get far hues

/** The picture, no larger than LONGEST_SIDE. */
export function drawPicture(canvas, bitmap) {
  const longest = Math.max(bitmap.width, bitmap.height);
  const scale = Math.min(LONGEST_SIDE / longest, Math.ceil(SMALL_SIDE / longest));
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale < 1;
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
}

/** Boxes with label and score; bbox_xyxy is in pixels of a picture of width and height. The best lies on top. */
export function drawBoxes(canvas, detections, { width, height }) {
  const context = canvas.getContext("2d");
  const scale = [canvas.width / width, canvas.height / height, canvas.width / width, canvas.height / height];
  const unit = Math.max(canvas.width, canvas.height) / SMALL_SIDE;
  context.lineWidth = 2 * unit;
  context.font = `600 ${12 * unit}px system-ui, sans-serif`;
  context.textBaseline = "top";
  for (const detection of detections.toReversed()) {
    const [left, top, right, bottom] = detection.bbox_xyxy.map((value, i) => value * scale[i]);
    context.strokeStyle = context.fillStyle = colorOf(detection.class_id);
    context.strokeRect(left, top, right - left, bottom - top);
    drawLabel(context, `${detection.name} ${detection.score.toFixed(2)}`, left, top, unit);
  }
}

function drawLabel(context, text, left, top, unit) {
  const width = context.measureText(text).width + 8 * unit;
  const height = 17 * unit;
  const x = Math.max(0, Math.min(left - unit, context.canvas.width - width));
  const y = top >= height ? top - height : Math.max(0, top);
  context.fillRect(x, y, width, height);
  context.fillStyle = "#fff";
  context.fillText(text, x + 4 * unit, y + 3 * unit);
}

export function colorOf(classId) {
  return `hsl(${(classId * GOLDEN_ANGLE + 250) % 360} 75% 42%)`;
}

/** The index-th grid of `colors`, in which grids of one size lie below each other, one pixel a patch. */
export function drawColors(canvas, colors, index, [rows, columns]) {
  const scale = COLORS_SIDE / Math.max(rows, columns);
  canvas.width = Math.round(columns * scale);
  canvas.height = Math.round(rows * scale);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(colors, 0, index * rows, columns, rows, 0, 0, canvas.width, canvas.height);
}
