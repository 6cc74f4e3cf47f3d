# Stores that lose what they acknowledged, or what they had: what a client's kernel reads afterwards, and what edges notice.
# Given by the driver: EDGES, each NAME=ADDRESS.
. ./lib.sh
timeout 540 python3 ./losses.py || failures=1
finish
