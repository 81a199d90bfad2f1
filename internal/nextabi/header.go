package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A function is a virtual function, a member is data.
type function struct {
	name, params string // params: types alone, and const
	pure         bool
}

type member struct{ name, kind string }

type class struct {
	functions []function
	members   []member
}

type value struct{ name, number string }

// headers is what a folder of headers declares.
type headers struct {
	classes map[string]class
	enums   map[string][]value
	version string // NIXL_PLUGIN_API_VERSION
}

// The classes and enumerations that a plugin and NIXL share.
var (
	classNames = []string{"nixlBackendInitParams", "nixlBackendOptionalArgs", "nixlBackendReqH", "nixlBackendMD", "nixlBackendPlugin", "nixlBasicDesc", "nixlBlobDesc", "nixlMetaDesc",
		"nixlRemoteMetaDesc", "nixlDescList", engine}
	enumNames = []string{"nixl_mem_t", "nixl_xfer_op_t", "nixl_status_t", "nixl_thread_sync_t", "nixl_cost_t"}
)

const engine = "nixlBackendEngine"

// read reads all headers below a folder.
func read(dir string) (headers, error) {
	h := headers{classes: map[string]class{}, enums: map[string][]value{}}
	names := map[string][]string{}
	var all []string // tokens of the files that declare one of them
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".h" {
			return err
		}
		text, err := os.ReadFile(path)
		if m := apiVersion.FindSubmatch(text); m != nil {
			h.version = string(m[1])
		}
		if !shared.Match(text) {
			return err
		}
		one := tokens(string(text))
		aliases(one, names)
		all = append(all, one...)
		return err
	})
	if err != nil {
		return h, err
	}
	for i := range all {
		name := name(all, i)
		switch {
		case (all[i] == "class" || all[i] == "struct") && slices.Contains(classNames, name) && !is(all, i-1, "enum"):
			if body, ok := body(all[i:]); ok {
				h.classes[name] = declarations(name, body, names)
			}
		case all[i] == "enum" && slices.Contains(enumNames, name):
			if body, ok := body(all[i:]); ok {
				h.enums[name] = values(body)
			}
		}
	}
	return h, nil
}

var (
	shared     = regexp.MustCompile(`(?:class|struct|enum)\s+(?:` + strings.Join(append(classNames, enumNames...), "|") + `)\b[^;{]*{`)
	apiVersion = regexp.MustCompile(`(?:#define NIXL_PLUGIN_API_VERSION|nixl_plugin_api_version =)\s+(\d+)`)
	noise      = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*|(?m:^[ \t]*#(?:[^\n\\]|\\\n|\\.)*$)|\[\[.*?\]\]`)
	token      = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[A-Za-z_]\w*|\d[\w.]*|::|->|\S`)
)

func tokens(text string) []string { return token.FindAllString(noise.ReplaceAllString(text, " "), -1) }

func is(all []string, i int, word string) bool { return i >= 0 && i < len(all) && all[i] == word }

// name returns the name behind class, struct, enum or enum class.
func name(all []string, i int) string {
	for i++; i < len(all) && (all[i] == "class" || all[i] == "struct"); i++ {
	}
	if i < len(all) {
		return all[i]
	}
	return ""
}

// body returns what is between the braces of a definition.
func body(all []string) ([]string, bool) {
	for i, t := range all {
		switch t {
		case ";":
			return nil, false // a declaration
		case "{":
			return all[i+1 : i+end(all[i:])], true
		}
	}
	return nil, false
}

// end returns the place of the bracket that closes the first one.
func end(all []string) int {
	depth := 0
	for i, t := range all {
		switch t {
		case "{", "(", "[":
			depth++
		case "}", ")", "]":
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return len(all) - 1
}

// aliases collects the other names of types: using A = B, and typedef B A.
func aliases(all []string, names map[string][]string) {
	names["us_t"] = []string{"uint64_t"} // nixlTime::us_t
	for i := range all {
		stop := slices.Index(all[i:], ";")
		switch {
		case stop < 0:
		case all[i] == "using" && is(all, i+2, "=") && stop > 3:
			names[all[i+1]] = all[i+3 : i+stop]
		case all[i] == "typedef" && stop > 2 && !slices.Contains(all[i:i+stop], "("):
			names[all[i+stop-1]] = all[i+1 : i+stop-1]
		}
	}
}

// kind writes a type without aliases and namespaces.
func kind(all []string, names map[string][]string) string {
	var out []string
	var expand func(all []string, depth int)
	expand = func(all []string, depth int) {
		for i, t := range all {
			switch other, ok := names[t]; {
			case t == "::" || is(all, i+1, "::"): // a namespace
			case ok && depth < 8 && !is(all, i-1, "class"):
				expand(other, depth+1)
			default:
				out = append(out, t)
			}
		}
	}
	expand(all, 0)
	return tight.Replace(strings.Join(out, " "))
}

var tight = strings.NewReplacer(" < ", "<", " >", ">", " ,", ",", " ( ", "(", " )", ")")

// declarations reads the body of a class.
func declarations(name string, all []string, names map[string][]string) class {
	var c class
	for len(all) > 0 {
		if len(all) > 1 && all[1] == ":" && slices.Contains([]string{"public", "protected", "private"}, all[0]) {
			all = all[2:]
			continue
		}
		stop, open := statement(all)
		one := all[:stop]
		all = all[min(stop+1, len(all)):]
		if len(one) == 0 || slices.Contains([]string{"using", "typedef", "friend", "static", "template", "enum", "class", "struct"}, one[0]) || slices.Contains(one, "operator") {
			continue
		}
		switch i := open; {
		case slices.Contains(one, "virtual"):
			c.functions = append(c.functions, virtual(one, i, names))
		case i >= 0 && is(one, i+1, "*"): // a pointer to a function
			c.members = append(c.members, member{one[i+2], kind(one[:i], names) + " (*)" + params(one[i+4:], names)})
		case i < 0:
			c.members = append(c.members, data(one, names))
		}
	}
	return c
}

// statement returns the end of the first declaration, and the place of its first bracket outside of template arguments, or -1.
func statement(all []string) (stop, open int) {
	open, angle := -1, 0
	for i := 0; i < len(all); i++ {
		switch all[i] {
		case "<":
			angle++
		case ">":
			angle--
		case "(":
			if angle <= 0 && open < 0 {
				open = i
			}
			i += end(all[i:])
		case "{":
			i += end(all[i:])
			if open >= 0 && !is(all, i+1, ";") && !is(all, i+1, ",") && !is(all, i+1, "{") { // the body of a function
				return i, open
			}
		case ";":
			return i, open
		}
	}
	return len(all), open
}

func virtual(one []string, open int, names map[string][]string) function {
	if open < 1 {
		return function{name: strings.Join(one, " ")}
	}
	f := function{name: one[open-1]}
	if is(one, open-2, "~") {
		f.name = "~" + f.name
	}
	stop := open + end(one[open:])
	f.params = params(one[open:stop+1], names)
	rest := one[stop+1:]
	if is(rest, 0, "const") {
		f.params += " const"
	}
	f.pure = len(rest) > 1 && rest[len(rest)-2] == "=" && rest[len(rest)-1] == "0"
	return f
}

// params writes the types of a list of parameters in brackets.
func params(all []string, names map[string][]string) string {
	var out []string
	all = all[1:max(1, end(all))]
	for from, depth, i := 0, 0, 0; i <= len(all); i++ {
		switch {
		case i < len(all) && strings.Contains("<({", all[i]):
			depth++
		case i < len(all) && strings.Contains(">)}", all[i]):
			depth--
		case i == len(all) || (all[i] == "," && depth == 0):
			if one := all[from:i]; len(one) > 0 {
				out = append(out, kind(unnamed(one), names))
			}
			from = i + 1
		}
	}
	return "(" + strings.Join(out, ", ") + ")"
}

var word = regexp.MustCompile(`^[A-Za-z_]\w*$`)

// unnamed takes the default and the name from a parameter.
func unnamed(one []string) []string {
	if i := slices.Index(one, "="); i >= 0 {
		one = one[:i]
	}
	last := len(one) - 1
	builtin := []string{"int", "unsigned", "long", "short", "char", "bool", "double", "float", "const"}
	if last > 0 && word.MatchString(one[last]) && one[last-1] != "::" && one[last-1] != "const" && !slices.Contains(builtin, one[last]) {
		return one[:last]
	}
	return one
}

// data reads a member: a type, a name, and perhaps a value.
func data(one []string, names map[string][]string) member {
	for i, t := range one {
		if t == "=" || t == "{" {
			one = one[:i]
			break
		}
	}
	suffix := ""
	if i := slices.Index(one, "["); i > 0 {
		suffix, one = strings.Join(one[i:], ""), one[:i]
	}
	if len(one) < 2 {
		return member{name: strings.Join(one, " ")}
	}
	from := 0
	if one[0] == "const" {
		from = 1
	}
	return member{one[len(one)-1], kind(one[from:len(one)-1], names) + suffix}
}

// values reads the body of an enumeration. A name without a number is one more than the name before it.
func values(all []string) []value {
	var out []value
	next := 0
	for len(all) > 0 {
		stop := slices.Index(all, ",")
		if stop < 0 {
			stop = len(all)
		}
		if one := all[:stop]; len(one) > 0 {
			n, sign := next, 1
			if i := slices.Index(one, "="); i >= 0 {
				if is(one, i+1, "-") {
					sign, i = -1, i+1
				}
				n = sign * number(one[i+1:])
				if old := slices.IndexFunc(out, func(v value) bool { return is(one, i+1, v.name) }); old >= 0 {
					n = number([]string{out[old].number})
				}
			}
			out = append(out, value{one[0], itoa(n)})
			next = n + 1
		}
		all = all[min(stop+1, len(all)):]
	}
	return out
}
