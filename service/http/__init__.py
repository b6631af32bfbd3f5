"""What the web sees: the application, its routes, and what every request passes."""
