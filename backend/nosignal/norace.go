//go:build !race

package nosignal

func release() {}
