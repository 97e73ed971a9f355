"""`python -m treeopt`: the command line."""

from treeopt.cli.main import main

main()
