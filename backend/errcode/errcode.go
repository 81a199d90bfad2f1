// Package errcode is the table of error codes (GR-1042). NIXL's boundary carries only a status, so the code in the log
// line leads to the cause. docs/errors.md and `gorail explain` are made from the table.
package errcode

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Key is the attribute of log lines that carries a code.
const Key = "code"

// Code is one row of the table. Rows are never changed, and a number is never used again.
type Code struct {
	Number  int
	Status  Status // what NIXL gets; Success: no call fails, the code is in the log alone
	Meaning string
	Cause   string
	Look    string // what to look at
	Remedy  string
	Test    string // "DIR TestName": the test that provokes it
}

// list holds all rows. The variables of the table fill it.
var list []*Code

// List returns all rows by number.
func List() []*Code {
	all := slices.Clone(list)
	slices.SortFunc(all, func(a, b *Code) int { return a.Number - b.Number })
	return all
}

func row(number int, st Status, c Code) *Code {
	c.Number, c.Status = number, st
	list = append(list, &c)
	return &c
}

// String is the code as users read it.
func (c *Code) String() string { return fmt.Sprintf("GR-%04d", c.Number) }

// MarshalText makes log handlers print the code.
func (c *Code) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Error is an error with a code. It unwraps to its cause.
type Error struct {
	code *Code
	err  error
}

// Error returns the text of the cause. The log line has the code as an attribute.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the cause, for errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.err }

// Errorf is fmt.Errorf (with %w) that carries the code and its status.
func (c *Code) Errorf(format string, args ...any) error {
	return &Error{c, fmt.Errorf(format, args...)}
}

// Of returns the outermost code of an error: nil for nil, Unclassified if its chain has none.
func Of(err error) *Code {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e.code
	}
	return Unclassified
}

// Find returns the row of a code as a user writes it: GR-1042, gr1042 or 1042. nil: there is none.
func Find(text string) *Code {
	digits := strings.TrimPrefix(strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(text)), "GR"), "-")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return nil
	}
	for _, c := range list {
		if c.Number == n {
			return c
		}
	}
	return nil
}
