package script

import (
	"fmt"
	"strconv"
	"strings"
)

// stream is a call that a script has named.
type stream struct {
	method Method
	closed bool // no request may follow
}

// parseAct reads what follows the name of a stream.
func (p *parser) parseAct(step *Step, name, text string) error {
	step.Stream = name
	verb, rest, _ := strings.Cut(text, " ")
	if verb == "=" {
		return p.parseOpen(step, rest)
	}
	stream := p.streams[name]
	step.Method, step.Act = stream.method, Act(verb)
	switch step.Act {
	case Send:
		if stream.closed {
			return fmt.Errorf("%s takes no further request", name)
		}
		expanded, err := expand(rest)
		if err != nil {
			return err
		}
		return p.parseRequest(step, expanded)
	case Expect:
		return parseExpect(step, rest)
	case Close:
		if stream.closed {
			return fmt.Errorf("%s is half-closed already", name)
		}
		stream.closed = true
	case End, Cancel:
		delete(p.streams, name)
	case Silent:
	default:
		return fmt.Errorf("%q is nothing that a stream can do", verb)
	}
	if rest != "" {
		return fmt.Errorf("%q after %q", rest, verb)
	}
	return nil
}

// parseOpen reads the method and, where there is one, the first request. Only a stream of requests can begin without.
func (p *parser) parseOpen(step *Step, text string) error {
	if p.streams[step.Stream] != nil {
		return fmt.Errorf("%s is open already", step.Stream)
	}
	if _, taken := methods[step.Stream]; taken {
		return fmt.Errorf("%s is the name of a method", step.Stream)
	}
	verb, rest, some := strings.Cut(text, " ")
	if _, known := methods[verb]; !known {
		return fmt.Errorf("no method is called %q", verb)
	}
	step.Act, step.Method = Open, methods[verb]
	p.streams[step.Stream] = &stream{step.Method, !step.Method.Sends}
	if step.Method.Sends && !some {
		return nil
	}
	return p.parseCall(step, verb, rest)
}

// parseExpect reads `N` or `N by field`.
func parseExpect(step *Step, text string) error {
	words := strings.Fields(text)
	if len(words) != 1 && !(len(words) == 3 && words[1] == "by") {
		return fmt.Errorf("%q is not a number of answers", text)
	}
	count, err := strconv.Atoi(words[0])
	if err != nil || count < 1 {
		return fmt.Errorf("%q is not a number of answers", words[0])
	}
	step.Count = count
	if len(words) == 3 {
		path, _, err := resolve(step.Method.NewResponse(), words[2])
		if err != nil {
			return err
		}
		step.By = path
	}
	return nil
}
