"""A web page on the server itself: chat, pictures, live charts, models."""
