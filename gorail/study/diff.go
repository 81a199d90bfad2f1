package study

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"gorail/gorail/study/page"
	"gorail/gorail/study/result"
)

// diffCommand compares two results.
func diffCommand(string) *cobra.Command {
	var output []string
	c := &cobra.Command{
		Use:     "diff FIRST.json SECOND.json",
		Short:   "Compare two results of one study number by number",
		Example: "  gorail study diff monday.json tuesday.json --output html=diff.html,md=-",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, files []string) error {
			sinks, err := open("diff", output)
			if err != nil {
				return err
			}
			defer discard(sinks)
			var both [2]*result.Result
			for i, f := range files {
				if both[i], err = read(f); err != nil {
					return err
				}
			}
			r, err := result.Diff(both[0], both[1])
			if err != nil {
				return err
			}
			r.Command = "gorail study diff " + files[0] + " " + files[1]
			return write(sinks, c.OutOrStdout(), c.ErrOrStderr(), r)
		},
	}
	c.Flags().StringSliceVar(&output, "output", []string{"html"}, "json, md, html, as of a study")
	return c
}

// showCommand writes the files of a result again.
func showCommand() *cobra.Command {
	var output []string
	c := &cobra.Command{
		Use:   "show RESULT.json",
		Short: "Write the page of a result again, or in other formats",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, files []string) error {
			r, err := read(files[0])
			if err != nil {
				return err
			}
			sinks, err := open(r.Study, output)
			if err != nil {
				return err
			}
			return write(sinks, c.OutOrStdout(), c.ErrOrStderr(), r)
		},
	}
	c.Flags().StringSliceVar(&output, "output", []string{"html"}, "json, md, html, as of a study")
	return c
}

func read(file string) (*result.Result, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(text) == 0 {
		return nil, fmt.Errorf("%s: %w", file, errors.New("empty: the study that made it has not ended"))
	}
	r, err := page.Read(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}
