"""The shipped tools: read, write, edit, glob, grep, bash, ask_user_question and todo_write (plugin ``tools``)."""
