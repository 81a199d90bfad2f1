package nixlapi

/*
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

// All releases of glibc have malloc_info; mallinfo2 came with 2.33, and mallinfo counts to 2 GiB.
static char *gn_malloc_info(void) {
    char *text = NULL;
    size_t n = 0;
    malloc_trim(0);
    FILE *f = open_memstream(&text, &n);
    if (f == NULL) {
        return NULL;
    }
    int e = malloc_info(0, f);
    if (fclose(f) != 0 || e != 0) {
        free(text);
        return NULL;
    }
    return text;
}
*/
import "C"

import (
	"encoding/xml"
	"errors"
	"fmt"
)

// Malloced returns how many bytes malloc has given out in this process, those in the caches of threads included. It gives free memory back to
// the kernel. Implements malloc_trim and malloc_info.
func Malloced() (uint64, error) {
	text := C.gn_malloc_info()
	if text == nil {
		return 0, errors.New("malloc_info fails")
	}
	defer C.free(ptr(text))
	return inUse([]byte(C.GoString(text)))
}

// inUse reads the answer of malloc_info: the sums of all arenas.
func inUse(text []byte) (uint64, error) {
	var all struct {
		Total []struct {
			Type string `xml:"type,attr"`
			Size uint64 `xml:"size,attr"`
		} `xml:"total"`
		System []struct {
			Type string `xml:"type,attr"`
			Size uint64 `xml:"size,attr"`
		} `xml:"system"`
	}
	if err := xml.Unmarshal(text, &all); err != nil {
		return 0, fmt.Errorf("malloc_info: %w", err)
	}
	n := uint64(0)
	for _, s := range all.System {
		if s.Type == "current" {
			n += s.Size
		}
	}
	for _, t := range all.Total {
		if t.Type == "mmap" {
			n += t.Size
		} else {
			n -= t.Size
		}
	}
	return n, nil
}
