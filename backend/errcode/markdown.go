package errcode

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"
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
	if c.Status == Success {
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
			fmt.Fprintf(&b, "\n## %s\n\n| code | what, and the cause | look at | remedy |\n|---|---|---|---|\n", groups[group].title)
		}
		answer := "`" + c.Status.String() + "`"
		if c.Status == Success {
			answer = "none"
		}
		fmt.Fprintf(&b, "| <a id=\"%s\"></a>%s, %s | **%s.** %s | %s | %s |\n", strings.ToLower(c.String()), c, answer, cell(c.Meaning), cell(c.Cause), cell(c.Look), cell(c.Remedy))
	}
	return []byte(strings.Replace(page, "{{rows}}\n", strings.TrimPrefix(b.String(), "\n"), 1))
}

// cell escapes what would end a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
