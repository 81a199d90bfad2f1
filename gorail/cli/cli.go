// Package cli is what all commands of the tool share towards their user: exit status, sub-commands, flags in groups, values that are words of
// a list.
package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Exit is an error with an exit status of its own. Its text may be empty.
type Exit struct {
	Code int
	Text string
}

func (e Exit) Error() string { return e.Text }

// Usage is an error of the arguments.
func Usage(format string, args ...any) error { return Exit{2, fmt.Sprintf(format, args...)} }

// Execute runs a command. What is wrong before it begins is an error of its arguments.
func Execute(root *cobra.Command) error {
	cobra.EnableCommandSorting = false
	began := false
	root.PersistentPreRun = func(*cobra.Command, []string) { began = true }
	root.SetFlagErrorFunc(wrongFlag)
	cobra.AddTemplateFunc("flagGroups", flagGroups)
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "Flags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}", "{{flagGroups .}}", 1))
	cobra.AddTemplateFunc("fold", fold)
	root.SetHelpTemplate(strings.Replace(root.HelpTemplate(), "trimTrailingWhitespaces", "fold", 1))
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Args = knownTopic
		}
	}
	c, err := root.ExecuteC()
	if _, ours := errors.AsType[Exit](err); err != nil && !began && !ours {
		return Usage("%v; see %s --help", err, c.CommandPath())
	}
	return err
}

// Coloured reports whether colours may be written: w is a terminal, and the variable NO_COLOR is not set (no-color.org).
func Coloured(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// knownTopic refuses help about commands that do not exist.
func knownTopic(help *cobra.Command, args []string) error {
	c, rest, err := help.Root().Find(args)
	if err != nil || len(rest) > 0 {
		return Parent(c, rest)
	}
	return nil
}

// NoArgs refuses arguments that are no flags.
func NoArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usage("%s takes no argument %q; see %s --help", c.CommandPath(), args[0], c.CommandPath())
	}
	return nil
}

// Parent is what a command with sub-commands does itself: help, or a word about a sub-command that does not exist.
func Parent(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	hint := "see " + c.CommandPath() + " --help"
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return Usage("%s has no command %q; %s", c.CommandPath(), args[0], hint)
}

// wants says what values of a type are. Other types have errors with words of their own.
var wants = map[string]string{
	"bool": "true or false", "int": "a whole number", "uint64": "a whole number of 0 or more", "float64": "a number", "duration": "a time such as 500ms or 2s",
	"intSlice": "whole numbers such as 1,4,16", "stringSlice": "words separated by commas",
}

// wrongFlag says what is wrong with a flag, in our words.
func wrongFlag(c *cobra.Command, err error) error {
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		flag := bad.GetFlag()
		if want := wants[flag.Value.Type()]; want != "" {
			err = fmt.Errorf("--%s %q: want %s", flag.Name, bad.GetValue(), want)
		} else {
			err = fmt.Errorf("--%s: %w", flag.Name, bad.Unwrap())
		}
	}
	return Usage("%v; see %s --help", err, c.CommandPath())
}

// heading is the annotation of a flag with the title of its group.
const heading = "heading"

// Group adds flags under a title.
func Group(to *pflag.FlagSet, title string, add func(*pflag.FlagSet)) {
	group := pflag.NewFlagSet(title, pflag.ContinueOnError)
	group.SortFlags = false
	add(group)
	group.VisitAll(func(f *pflag.Flag) {
		f.Annotations = map[string][]string{heading: {title}}
		to.AddFlag(f)
	})
}

// width is that of --help.
const width = 100

// fold wraps paragraphs.
func fold(text string) string {
	paragraphs := strings.Split(strings.TrimSpace(text), "\n\n")
	for i, p := range paragraphs {
		paragraphs[i] = ansi.Wordwrap(strings.ReplaceAll(p, "\n", " "), width, "")
	}
	return strings.Join(paragraphs, "\n\n")
}

// flagGroups are the flags of a command for --help: by their groups, then those of none.
func flagGroups(c *cobra.Command) string {
	sets, titles := map[string]*pflag.FlagSet{}, []string{}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		title := ""
		if t := f.Annotations[heading]; len(t) > 0 {
			title = t[0]
		}
		if sets[title] == nil {
			sets[title] = pflag.NewFlagSet(title, pflag.ContinueOnError)
			sets[title].SortFlags = false
			if title != "" {
				titles = append(titles, title)
			}
		}
		sets[title].AddFlag(f)
	})
	var b strings.Builder
	for _, title := range titles {
		fmt.Fprintf(&b, "%s:\n%s\n", title, sets[title].FlagUsagesWrapped(width))
	}
	if rest := sets[""]; rest != nil {
		fmt.Fprintf(&b, "Flags:\n%s", rest.FlagUsagesWrapped(width))
	}
	return strings.TrimRight(b.String(), " \n")
}

// Values completes the value of a flag with words. A list completes its last one.
func Values(c *cobra.Command, flag string, words ...string) {
	list := strings.HasSuffix(c.Flag(flag).Value.Type(), "Slice")
	err := c.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		before := ""
		if list {
			before = typed[:strings.LastIndexByte(typed, ',')+1]
		}
		var out []string
		for _, w := range words {
			out = append(out, before+w)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // a flag that the command lacks
	}
}
