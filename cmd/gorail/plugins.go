package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gorail/backend/option"
	"gorail/cmd/gorail/plugindir"
)

func pluginsCommand() *cobra.Command {
	var s plugindir.Spec
	c := &cobra.Command{
		Use:   "plugins --dir D [--wheel PATH] [--as UCX,LIBFABRIC,...]",
		Short: "Make a folder for NIXL_PLUGIN_DIR: GORAIL, the wheel's own plugins, and GORAIL under other names",
		Long: `NIXL_PLUGIN_DIR replaces NIXL's own plugin folder. This command makes a folder D. D/plugins has GORAIL and the stock plugins of an
installed wheel. With --as it also has GORAIL in place of a backend whose name a program has built in ("UCX"). Both sides of a transfer
need the same name. Everything is a link, and the wheel is only read. Run the command again to change the names or after an update of the wheel.`,
		Example: "  gorail plugins --dir ~/nixl-plugins --as UCX\n  eval $(gorail plugins --dir ~/nixl-plugins)",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s.Wheel, s.Plugin = cmp.Or(s.Wheel, plugindir.FindWheel()), cmp.Or(s.Plugin, plugindir.FindPlugin())
			made, err := plugindir.Make(s)
			if err != nil {
				return err
			}
			for _, name := range made.Aliases {
				note := ""
				if slices.Contains(made.Hidden, name) {
					note = "; the wheel's own is hidden"
				} else if !slices.Contains(option.Aliases(), name) {
					note = "; not a known NIXL backend, so it accepts only GORAIL's parameters"
				}
				c.PrintErrf("%s is GORAIL%s\n", name, note)
			}
			c.PrintErrf("beside GORAIL: %s\n", strings.Join(made.Stock, ", "))
			_, err = fmt.Fprintf(c.OutOrStdout(), "export NIXL_PLUGIN_DIR=%s\n", quote(made.Plugins))
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&s.Dir, "dir", "", "the folder to make")
	f.StringVar(&s.Wheel, "wheel", "", "site-packages with a NIXL wheel (default NIXL_WHEEL_DIR, then what python3 imports)")
	f.StringVar(&s.Plugin, "plugin", "", "libplugin_GORAIL.so (default: in GORAIL_PLUGIN_DIR, beside gorail, where both were installed, in ./build)")
	f.StringSliceVar(&s.As, "as", nil, "further names for GORAIL: "+strings.Join(option.Aliases(), ", "))
	_ = c.MarkFlagRequired("dir")
	return c
}

// quote quotes a word for a shell.
func quote(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+,=:") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
