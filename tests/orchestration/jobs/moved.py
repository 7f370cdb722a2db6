"""Where the migration job finds the application that a test moves; each test sets its own."""

from weir import Application

app: Application
