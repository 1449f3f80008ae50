#!/bin/sh
# Run Innoscope from the directory of this script, with $INNOSCOPE_PYTHON or with the first supported Python on PATH.
home=$(dirname "$(readlink -f "$0")")
supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'
for python in ${INNOSCOPE_PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$python" -I -c "$supported" 2>/dev/null; then
        PATH="$PATH:$home/bin" PYTHONPATH="$home/lib" exec "$python" -s -P -m innoscope.cli.main "$@"
    fi
done
echo "innoscope: cannot find Python 3.11 to 3.14 (on RHEL 8.8, RHEL 9.2 and newer: dnf install python3.11);" \
    "INNOSCOPE_PYTHON=/path/to/python selects another one" >&2
exit 1
