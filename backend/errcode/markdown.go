package errcode

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"gorail/backend/status"
)

//go:embed page.md
var page string

// groups are the headings of docs/errors.md, by the first number of each.
var groups = []struct {
	first int
	title string
}{
	{1001, "Calls"}, {1008, "Making an agent"}, {1020, "Memory"}, {1031, "Peers and metadata"}, {1042, "Transfers"}, {1071, "Notifications"},
	{2001, "Warnings"},
}

// statusText is the status of a row for readers.
func (c *Code) statusText() string {
	if c.Status == status.Success {
		return "none: no call fails"
	}
	return c.Status.String()
}

// pages are links between the pages of docs.
var pages = regexp.MustCompile(`\[([a-z]+\.md)\]\([^)]+\)`)

// Explain is the text of one row for a terminal.
func (c *Code) Explain() string {
	return pages.ReplaceAllString(fmt.Sprintf("%s: %s\n\nStatus:  %s\nCause:   %s\nLook at: %s\nRemedy:  %s\n", c, c.Meaning, c.statusText(), c.Cause, c.Look, c.Remedy),
		"docs/$1")
}

// Markdown returns the text of docs/errors.md: page.md with the rows.
func Markdown() []byte {
	var b strings.Builder
	group := -1
	for _, c := range List() {
		for group+1 < len(groups) && c.Number >= groups[group+1].first {
			group++
			fmt.Fprintf(&b, "## %s\n\n", groups[group].title)
		}
		fmt.Fprintf(&b, "### %s\n\n%s.\n\n- Status: `%s`\n- Cause: %s\n- Look at: %s\n- Remedy: %s\n\n", c, c.Meaning, c.statusText(), c.Cause, c.Look, c.Remedy)
	}
	return []byte(strings.Replace(page, "{{rows}}\n", strings.TrimRight(b.String(), "\n")+"\n", 1))
}
