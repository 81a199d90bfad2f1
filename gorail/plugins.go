package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gorail/backend/host"
	"gorail/backend/option"
	"gorail/gorail/cli"
	"gorail/gorail/plugindir"
)

func pluginsCommand() *cobra.Command {
	var s plugindir.Spec
	asJSON, clean := false, false
	c := &cobra.Command{
		Use:   "plugins --dir D [--wheel PATH | --from FOLDER] [--as UCX,LIBFABRIC,...]",
		Short: "Make a folder for NIXL_PLUGIN_DIR: GORAIL, NIXL's plugins, GORAIL under other names",
		Long: `NIXL_PLUGIN_DIR replaces NIXL's own plugin folder. This command makes a folder D. D/plugins has GORAIL and the stock plugins of an
installed wheel, or of another folder (--from): those of Dynamo's images, for example. With --as it also has GORAIL in place of a backend whose
name a program has built in ("UCX"). Both sides of a transfer need the same name. Everything is a link, and NIXL's files are only read. Run the
command again to change the names or after an update of NIXL. Many processes may run it at once.

If nixl-cu12 and nixl-cu13 are installed side by side, the choice is that of NIXL's package nixl: the CUDA that torch was built for decides, and
without such a torch it is nixl-cu13.

With --clean it removes the folder of --dir; without --dir those that nixl_gorail.enable() and gorail-env have made for this user.`,
		Example: "  gorail plugins --dir ~/nixl-plugins --as UCX\n  eval $(gorail plugins --dir ~/nixl-plugins)\n" +
			"  gorail plugins --dir ~/nixl-plugins --from /opt/nvidia/nvda_nixl/lib64/plugins",
		Args: cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if clean {
				return cleanPlugins(c, s)
			}
			if s.Dir == "" && s.Cache == "" {
				return cli.Usage("--dir D: which folder is to be made?")
			}
			if s.Dir != "" && s.Cache != "" {
				return cli.Usage("--dir and --cache exclude each other")
			}
			spec, notes := plugindir.Default(s)
			spec.Plugin = cmp.Or(spec.Plugin, plugindir.FindPlugin())
			for _, note := range notes {
				c.PrintErrln(note)
			}
			made, err := plugindir.Make(spec)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(c.OutOrStdout()).Encode(made)
			}
			tell(c, made)
			_, err = fmt.Fprintf(c.OutOrStdout(), "export NIXL_PLUGIN_DIR=%s\n", quote(made.Plugins))
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&s.Dir, "dir", "", "the folder to make")
	f.StringVar(&s.Cache, "cache", "", "in place of --dir: make the folder below this one, under a name for this plugin, source and --as")
	f.StringVar(&s.Wheel, "wheel", "", "site-packages with a NIXL wheel (default NIXL_WHEEL_DIR, then what python3 imports)")
	f.StringVar(&s.From, "from", "", "a folder with NIXL's stock plugins, in place of a wheel (default NIXL_PLUGIN_DIR if it has some)")
	f.StringVar(&s.CUDA, "cuda", "", "which wheel if several are installed: 12, 13 (default: as NIXL's package nixl chooses)")
	f.StringVar(&s.Plugin, "plugin", "", "libplugin_GORAIL.so (default: in GORAIL_PLUGIN_DIR, beside gorail, where both were installed, in ./build)")
	f.BoolVar(&asJSON, "json", false, "print what was made as JSON, in place of the export line")
	f.StringSliceVar(&s.As, "as", nil, "further names for GORAIL: "+strings.Join(option.Aliases(), ", "))
	f.BoolVar(&clean, "clean", false, "remove the folder, or all folders of this user's cache")
	cli.Values(c, "as", option.Aliases()...)
	cli.Values(c, "cuda", "12", "13")
	return c
}

// cleanPlugins removes folders and says which.
func cleanPlugins(c *cobra.Command, s plugindir.Spec) error {
	caches := []string{s.Cache}
	if s.Dir == "" && s.Cache == "" {
		caches = plugindir.Caches()
	}
	var errs []error
	for _, cache := range caches {
		removed, err := plugindir.Clean(s.Dir, cache, host.Owners(cmp.Or(s.Plugin, plugindir.FindPlugin())))
		for _, dir := range removed {
			c.PrintErrf("removed %s\n", dir)
		}
		errs = append(errs, err)
	}
	if dir := os.Getenv("NIXL_PLUGIN_DIR"); dir != "" {
		if _, err := os.Stat(dir); err != nil {
			c.PrintErrf("NIXL_PLUGIN_DIR still names %s, which is not there: unset NIXL_PLUGIN_DIR\n", dir)
		}
	}
	return errors.Join(errs...)
}

// tell says what was made.
func tell(c *cobra.Command, made plugindir.Made) {
	why := ""
	if made.Why != "" {
		why = " (" + made.Why + ")"
	}
	c.PrintErrf("NIXL's own plugins: %s%s\n", made.Source, why)
	for _, name := range made.Aliases {
		note := ""
		if slices.Contains(made.Hidden, name) {
			note = "; NIXL's own is hidden"
		} else if !slices.Contains(option.Aliases(), name) {
			note = "; not a known NIXL backend, so it accepts only GORAIL's parameters"
		}
		c.PrintErrf("%s is GORAIL%s\n", name, note)
	}
	c.PrintErrf("beside GORAIL: %s\n", strings.Join(made.Stock, ", "))
}

// quote quotes a word for a shell.
func quote(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+,=:") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
