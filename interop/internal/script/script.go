// Package script reads the request scripts of interop/cases.
//
// A script is a story that a person can read. Each file is told to one fresh, empty store, so that its revisions
// start at 1 and are the same for every server that hears it.
//
//	# Text at the head of the file says what the script is about.
//
//	# A comment right above a step says why the step is there.
//	Put key:"a" value:"1"
//	Range key:"a" range_end:"z"
//	  limit:2                                    (an indented line continues the step)
//	Txn [[129 success:{request_put:{key:"k#"}}]]  (text repeated 129 times, # counting 001, 002, ...)
//	Raw /etcdserverpb.KV/Range "\n\x01a"          (a path and a body that no message type vouches for)
//
//	Repeat 1010 Put key:"a"                      (the same call, again and again; the last answer counts)
//
//	w = Watch create_request:{key:"a"}           (open a stream, here with its first request; or start a call)
//	w send create_request:{key:"b"}              (one more request on it)
//	w expect 2                                   (the next two answers, in this order)
//	w expect 4 by watch_id                       (the next four; only those with equal watch_id are ordered)
//	w silent                                     (no answer has arrived that no step expects, and w has not ended)
//	w close                                      (half-close: no request follows)
//	w end                                        (the answers that are left, and the status)
//	w cancel                                     (reset the stream; its name is free again)
//
//	LeaseGrant TTL:60 => ID:$lease               (the field ID of the answer is bound to a variable, and masked)
//	LeaseRevoke ID:$lease                        (the request takes the value)
//	Range key:"a" => kvs.lease:$lease            (a bound field is masked only where it has the bound value)
//
//	Flags --watch-progress-notify-interval=2s    (before all steps: flags of the server)
//	HasLeader Put key:"a"                        (a call, or a stream that it opens, with hasleader metadata)
//
// The request of a step is protobuf's text form. A repetition may stand anywhere, also inside a quoted string.
// A step with a comment above it begins a case: the steps from there on, up to the next comment.
//
// Knows nothing of connections or recordings.
package script

import (
	"fmt"
	"strconv"
	"strings"
)

// Script is one file: its steps run in order, each one after the answer of the step before.
type Script struct {
	Name  string
	About string
	// Flags are those of the server, besides the usual ones.
	Flags []string
	Steps []Step
	// StandIns are what the requests hold in place of a variable's value, as protobuf encodes it.
	StandIns map[string][]byte
}

// Act is what a step does.
type Act string

const (
	Call   Act = ""       // one call, up to its status
	Open   Act = "open"   // start a call under a name
	Send   Act = "send"   // one more request
	Expect Act = "expect" // the next answers
	Silent Act = "silent" // no answer is left over
	Close  Act = "close"  // half-close
	End    Act = "end"    // the answers that are left, and the status
	Cancel Act = "cancel" // reset by the client
)

// Step is one call, or one act on a call that has a name.
type Step struct {
	Why    string // the comment above the step, may be empty
	Line   string // the step as it stands in the file, on one line
	At     int    // the line of the file on which it begins
	Act    Act
	Stream string // the name of the call, unless the act is Call
	Method Method
	// HasLeader: the call has the metadata hasleader: true.
	HasLeader bool
	Body      []byte // the request as it goes over the wire; nil where the step sends none
	Times     int    // how often a call is made, one after the other
	Count     int    // how many answers are expected
	By        string // path of the field whose equal values keep their order; empty: all answers do
	Uses      []Slot // fields of the request that take the value of a variable
	Binds     []Slot // fields of the answers that bind a variable, or have its value
}

// Slot is a field, by its numbers from the outermost message inwards, that holds the value of a variable.
type Slot struct {
	Path     string `json:"path"`
	Variable string `json:"variable"`
}

// Cases counts the groups of steps that begin with a comment; steps before the first comment are one too.
func (s *Script) Cases() int {
	cases := 0
	for i, step := range s.Steps {
		if step.Why != "" || i == 0 {
			cases++
		}
	}
	return cases
}

// parser holds what a step may refer to.
type parser struct {
	streams   map[string]*stream
	variables map[string]variable
}

// Parse reads one file. An error names the line on which the step begins.
func Parse(name, text string) (*Script, error) {
	s := &Script{Name: name}
	p := parser{map[string]*stream{}, map[string]variable{}}
	var comment []string
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimRight(lines[i], " \t")
		switch {
		case line == "":
			// A comment that a blank line follows belongs to the file when nothing came before it.
			if s.About == "" && len(s.Steps) == 0 {
				s.About = strings.Join(comment, " ")
			}
			comment = nil
		case strings.HasPrefix(line, "#"):
			comment = append(comment, strings.TrimSpace(line[1:]))
		case strings.HasPrefix(line, "Flags "):
			if len(s.Steps) > 0 {
				return nil, fmt.Errorf("%s.txt:%d: flags after a step", name, i+1)
			}
			s.Flags = append(s.Flags, strings.Fields(line)[1:]...)
		case line[0] == ' ' || line[0] == '\t':
			return nil, fmt.Errorf("%s.txt:%d: a continuation without a step", name, i+1)
		default:
			begin := i
			for i+1 < len(lines) && strings.HasPrefix(lines[i+1], " ") {
				i++
				line += " " + strings.TrimSpace(lines[i])
			}
			step, err := p.parseStep(line)
			if err != nil {
				return nil, fmt.Errorf("%s.txt:%d: %w", name, begin+1, err)
			}
			step.Why, step.At = strings.Join(comment, " "), begin+1
			comment = nil
			s.Steps = append(s.Steps, step)
		}
	}
	if len(s.Steps) == 0 {
		return nil, fmt.Errorf("%s.txt: no step", name)
	}
	s.StandIns = p.standIns()
	return s, nil
}

func (p *parser) parseStep(line string) (Step, error) {
	step := Step{Line: line, Times: 1}
	asked, slots, binds := strings.Cut(line, " => ")
	asked, step.HasLeader = strings.CutPrefix(asked, "HasLeader ")
	verb, rest, _ := strings.Cut(asked, " ")
	var err error
	if verb == "Repeat" {
		times, call, _ := strings.Cut(rest, " ")
		if step.Times, err = strconv.Atoi(times); err != nil || step.Times < 1 || step.Times > repetitions {
			return step, fmt.Errorf("%q is no number of calls", times)
		}
		verb, rest, _ = strings.Cut(call, " ")
	}
	switch _, known := methods[verb]; {
	case known || verb == "Raw":
		err = p.parseCall(&step, verb, rest)
	case step.Times == 1 && (p.streams[verb] != nil || strings.HasPrefix(rest, "= ")):
		err = p.parseAct(&step, verb, rest)
		if err == nil && step.HasLeader && step.Act != Open {
			err = fmt.Errorf("metadata on a stream that is open")
		}
	default:
		err = fmt.Errorf("no method and no stream is called %q", verb)
	}
	if err == nil && binds {
		err = p.parseBinds(&step, slots)
	}
	return step, err
}

// parseCall reads a method and its request.
func (p *parser) parseCall(step *Step, verb, rest string) error {
	text, err := expand(rest)
	if err != nil {
		return err
	}
	if verb == "Raw" {
		step.Method, step.Body, err = parseRaw(text)
		return err
	}
	step.Method = methods[verb]
	return p.parseRequest(step, text)
}

// parseRaw reads `/path "quoted bytes"`. A path that we know keeps its types, so that the answer can be shown.
func parseRaw(text string) (Method, []byte, error) {
	path, quoted, _ := strings.Cut(strings.TrimSpace(text), " ")
	body, err := strconv.Unquote(strings.TrimSpace(quoted))
	if err != nil {
		return Method{}, nil, fmt.Errorf("body of a raw step: %w", err)
	}
	for _, method := range methods {
		if method.Path == path {
			return method, []byte(body), nil
		}
	}
	return Method{Path: path}, []byte(body), nil
}

// repetitions bounds what one line can grow to: room for a value beyond every limit that a server has.
const repetitions = 4 << 20

// expand replaces each [[N text]] by N copies of text. Repetitions do not nest.
func expand(text string) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "[[")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		inner, after, closed := strings.Cut(rest, "]]")
		count, body, spaced := strings.Cut(inner, " ")
		times, err := strconv.Atoi(count)
		if !closed || !spaced || err != nil || times < 0 || times > repetitions {
			return "", fmt.Errorf("bad repetition [[%s]]", inner)
		}
		if strings.Contains(body, "#") {
			for n := 1; n <= times; n++ {
				out.WriteString(strings.ReplaceAll(body, "#", fmt.Sprintf("%03d", n)) + " ")
			}
		} else {
			out.WriteString(strings.Repeat(body, times))
		}
		text = after
	}
}
