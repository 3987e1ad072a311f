"""What ``hostctl run --demo`` says before it plays."""

INTRODUCTION = """\
This is the offline demo: the model demo/demo works in a copy of a sample repository,
{folder}

It understands, for example with `hostctl run --demo "count 5"`:
  say TEXT          count N           read PATH         write PATH TEXT
  run COMMAND       ask QUESTION      delegate TASK     fix the failing test

Now it plays: {story}
"""
