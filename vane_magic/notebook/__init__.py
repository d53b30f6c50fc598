"""The notebook's face: magics, their options and completion, the display of answers, the form."""
