import sys

from fedtiny.cli.main import main

main(sys.argv[1:])
