#!/bin/sh
# `go test -exec` calls this instead of the test, in the package's folder: keeps the test program as $KEEP/FOLDER/test.
folder=$KEEP/${PWD#"$KEEP_ROOT"/}
mkdir -p "$folder" && mv "$1" "$folder/test"
