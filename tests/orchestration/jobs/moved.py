"""Where the migration jobs find the application that a test moves; each test sets its own."""

from weir import Application

app: Application
