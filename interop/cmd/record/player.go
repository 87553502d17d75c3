package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"kv-server/interop/internal/script"
	"kv-server/interop/internal/session"
	"kv-server/interop/internal/wire"
)

// patience is how long an answer may take: above the expiry of the shortest lease, on a busy machine.
const patience = 15 * time.Second

// noLeader is what calls with hasleader metadata are told.
const noLeader = "etcdserver: no leader"

// player carries the steps of one script out.
type player struct {
	connection *grpc.ClientConn
	streams    map[string]*session.Stream
	standIns   map[string][]byte // what requests hold in place of a variable
	bound      map[string][]byte // encoded values of the variables that are bound
}

// play carries out one step.
func (p *player) play(step script.Step) (Step, error) {
	recorded := Step{
		Why: step.Why, Call: abbreviate(step.Line), Act: step.Act, Stream: step.Stream, Method: step.Method,
		HasLeader: step.HasLeader, Times: step.Times, By: step.By, Uses: step.Uses, Binds: step.Binds,
	}
	if step.Body != nil {
		recorded.Sends = true
		recorded.Request = wire.Show(blank(step.Method.NewRequest), step.Body)
		recorded.RequestBytes = wire.Pack(step.Body)
		step.Body = p.substitute(step.Body, step.Uses)
	}
	stream := p.streams[step.Stream]
	switch step.Act {
	case script.Call:
		return recorded, p.call(&recorded, step)
	case script.Open:
		opened, err := session.Open(p.connection, step)
		p.streams[step.Stream] = opened
		return recorded, err
	case script.Send:
		return recorded, stream.Send(step.Body)
	case script.Expect:
		answers, err := stream.Take(step.Count, patience)
		if err != nil {
			return recorded, err
		}
		return recorded, p.take(&recorded, step, answers, nil)
	case script.Silent:
		return recorded, stream.Silent()
	case script.Close:
		return recorded, stream.CloseSend()
	case script.End:
		delete(p.streams, step.Stream)
		answers, end, err := stream.End(patience)
		if err != nil {
			return recorded, err
		}
		return recorded, p.take(&recorded, step, answers, &end)
	case script.Cancel:
		delete(p.streams, step.Stream)
		stream.Cancel()
		return recorded, nil
	}
	return recorded, fmt.Errorf("no way to %s", step.Act)
}

// call makes a call, or several of which the last answer counts: those before have to end well.
func (p *player) call(recorded *Step, step script.Step) error {
	for last := step.Times - 1; ; last-- {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		answers, end := session.Exchange(session.WithMetadata(ctx, step), p.connection, step)
		cancel()
		if last == 0 {
			return p.take(recorded, step, answers, &end)
		}
		if end != nil {
			return fmt.Errorf("%d calls before the last: %w", last, end)
		}
	}
}

// finish fails where a stream of the script holds an answer that no step expects, and cancels all of them.
func (p *player) finish(script string) error {
	for name, stream := range p.streams {
		if err := stream.Silent(); err != nil {
			return fmt.Errorf("%s.txt: at the end, %s: %w", script, name, err)
		}
		stream.Cancel()
	}
	return nil
}

// substitute puts the values of variables into a request.
func (p *player) substitute(request []byte, uses []script.Slot) []byte {
	for _, use := range uses {
		request = wire.Replace(request, use.Path, func(value []byte, _ protowire.Type) []byte {
			if bytes.Equal(value, p.standIns[use.Variable]) {
				return p.bound[use.Variable]
			}
			return value
		})
	}
	return request
}

// take masks answers, binds variables and notes how the call ended, where it did.
func (p *player) take(recorded *Step, step script.Step, answers [][]byte, end *error) error {
	recorded.Answers, recorded.AnswerBytes = []json.RawMessage{}, []string{}
	if step.By != "" {
		slices.SortStableFunc(answers, func(a, b []byte) int {
			return bytes.Compare(wire.First(a, step.By), wire.First(b, step.By))
		})
	}
	if end == nil || *end == nil {
		if err := p.bind(answers, step.Binds); err != nil {
			return err
		}
	}
	for _, answer := range answers {
		answer = wire.Mask(p.maskBound(answer, step.Binds), wire.Varying(step.Method.Path))
		recorded.Answers = append(recorded.Answers, wire.Show(blank(step.Method.NewResponse), answer))
		recorded.AnswerBytes = append(recorded.AnswerBytes, wire.Pack(answer))
	}
	if end == nil {
		return nil
	}
	how := status.Convert(*end)
	// Go's protobuf spells the space in its errors differently from build to build; clients do not compare them.
	recorded.Ends = true
	recorded.Code, recorded.Message = how.Code().String(), strings.ReplaceAll(how.Message(), "\u00a0", " ")
	// No leader is what a script may wait for. Other calls that were not served say nothing of the server.
	notServed := how.Code() == codes.Unavailable || how.Code() == codes.DeadlineExceeded
	if notServed && recorded.Message != noLeader {
		return fmt.Errorf("no answer worth recording: %w", *end)
	}
	return nil
}

// bind gives variables that have no value yet the first value on their path.
func (p *player) bind(answers [][]byte, binds []script.Slot) error {
	for _, slot := range binds {
		for _, answer := range answers {
			if value := wire.First(answer, slot.Path); value != nil && p.bound[slot.Variable] == nil {
				p.bound[slot.Variable] = slices.Clone(value)
			}
		}
		if p.bound[slot.Variable] == nil {
			return fmt.Errorf("no answer holds $%s", slot.Variable)
		}
	}
	return nil
}

func (p *player) maskBound(answer []byte, binds []script.Slot) []byte {
	for _, slot := range binds {
		answer = wire.Replace(answer, slot.Path, func(value []byte, kind protowire.Type) []byte {
			if bytes.Equal(value, p.bound[slot.Variable]) {
				return wire.Masked(value, kind)
			}
			return value
		})
	}
	return answer
}
