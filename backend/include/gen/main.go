// Command gen writes the files that let packages find headers of other packages. It runs in backend/include.
package main

import (
	"log"
	"os"
	"path/filepath"

	"gorail/backend/include"
)

func main() {
	for _, user := range include.Users {
		want, err := user.Source(os.DirFS("../.."))
		if err != nil {
			log.Fatal(err)
		}
		file := filepath.Join("../..", user.Dir, include.File)
		if text, err := os.ReadFile(file); err == nil && string(text) == want {
			continue // unchanged: ninja compares modification times
		}
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
