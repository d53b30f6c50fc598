"""The client: from a question to a ToolResult. It knows neither notebooks nor IPython."""
