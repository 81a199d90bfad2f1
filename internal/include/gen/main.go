// Command gen writes the files that let packages find headers of other packages. It runs in internal/include.
package main

import (
	"log"
	"os"
	"path/filepath"

	"gorail/internal/include"
)

func main() {
	tree := os.DirFS("../..")
	for _, user := range include.Users {
		write(filepath.Join(user.Dir, include.File))(user.Source(tree))
	}
}

// write writes a file of the tree, unless it is unchanged: ninja compares modification times.
func write(name string) func(string, error) {
	return func(want string, err error) {
		if err != nil {
			log.Fatal(err)
		}
		file := filepath.Join("../..", name)
		if text, err := os.ReadFile(file); err == nil && string(text) == want {
			return
		}
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
