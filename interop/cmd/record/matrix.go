package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"kv-server/interop/internal/process"
	"kv-server/interop/internal/script"
	"kv-server/interop/internal/session"
	"kv-server/interop/internal/wire"
)

// matrixFlags keep the passwords of a matrix cheap. The replay starts its server with the same flags.
var matrixFlags = []string{"--bcrypt-cost", "4"}

// garbage is a token that no server issued.
const garbage = "garbagegarbageg.1"

// matrixRow is one line of the recording. Each character of Outcomes stands for an outcome, in the order of the credentials.
type matrixRow struct {
	Outcomes string      `json:"outcomes,omitempty"`
	Call     string      `json:"call"`
	Role     script.Role `json:"role"`
	Why      string      `json:"why,omitempty"`
	Method   string      `json:"method"`
	Sends    bool        `json:"sends,omitempty"`
	Request  string      `json:"request"` // see wire.Pack
}

// letters name outcomes, in the order in which they are first seen.
const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// matrixPlayer makes the calls of one matrix.
type matrixPlayer struct {
	connection *grpc.ClientConn
	tokens     map[string]string
	outcomes   []string
}

// recordMatrix makes every call with every credential, and returns what came of it.
func recordMatrix(binary string, m *script.Matrix) ([]byte, error) {
	dir, err := os.MkdirTemp("", "record-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	members, err := process.Prepare(binary, dir, 1)
	if err != nil {
		return nil, err
	}
	members[0].AddFlags(matrixFlags...)
	if err := members[0].Start(); err != nil {
		return nil, err
	}
	defer members[0].Kill()
	connection, err := session.Dial(members[0])
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	p := matrixPlayer{connection: connection}
	rows, err := p.play(m)
	if err != nil {
		return nil, err
	}
	return encodeMatrix(m, p.outcomes, rows)
}

func (p *matrixPlayer) play(m *script.Matrix) ([]matrixRow, error) {
	var rows []matrixRow
	var byRoot []script.Row
	for _, row := range m.Rows {
		recorded := matrixRow{
			Call: row.Step.Line, Role: row.Role, Why: row.Why, Method: row.Step.Method.Path, Sends: row.Step.Method.Sends,
			Request: wire.Pack(row.Step.Body),
		}
		switch row.Role {
		case script.Before:
			if outcome := p.call("", row.Step); outcome != "OK" {
				return nil, fmt.Errorf("%s.matrix:%d: %s", m.Name, row.Step.At, outcome)
			}
		case script.Root:
			byRoot = append(byRoot, row)
		case script.Each:
			letters, err := p.each(m, byRoot, row.Step)
			if err != nil {
				return nil, fmt.Errorf("%s.matrix:%d: %w", m.Name, row.Step.At, err)
			}
			recorded.Outcomes, byRoot = letters, nil
		}
		rows = append(rows, recorded)
	}
	return rows, nil
}

// each makes the call of a row with every credential, each time after the calls that root makes for it.
func (p *matrixPlayer) each(m *script.Matrix, byRoot []script.Row, step script.Step) (string, error) {
	if p.tokens == nil {
		if err := p.authenticate(m.Credentials); err != nil {
			return "", err
		}
	}
	var found strings.Builder
	for _, credential := range m.Credentials {
		for _, row := range byRoot {
			p.call(p.tokens["root"], row.Step) // what it changed may be there already
		}
		outcome := p.call(p.tokens[credential], step)
		for _, name := range []string{codes.Unavailable.String(), codes.DeadlineExceeded.String()} {
			if strings.HasPrefix(outcome, name) {
				return "", fmt.Errorf("no answer worth recording to %s: %s", credential, outcome)
			}
		}
		letter, err := p.letter(outcome)
		if err != nil {
			return "", err
		}
		found.WriteByte(letter)
	}
	return found.String(), nil
}

func (p *matrixPlayer) authenticate(credentials []string) error {
	p.tokens = map[string]string{"none": "", "garbage": garbage}
	for _, name := range credentials {
		if _, known := p.tokens[name]; known {
			continue
		}
		request, err := proto.Marshal(&pb.AuthenticateRequest{Name: name, Password: name})
		if err != nil {
			return err
		}
		var answer []byte
		if err := p.connection.Invoke(context.Background(), "/etcdserverpb.Auth/Authenticate", request, &answer); err != nil {
			return fmt.Errorf("authenticate %s: %w", name, err)
		}
		var response pb.AuthenticateResponse
		if err := proto.Unmarshal(answer, &response); err != nil {
			return err
		}
		p.tokens[name] = response.Token
	}
	return nil
}

func (p *matrixPlayer) call(token string, step script.Step) string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "token", token)
	}
	answer, end := session.First(ctx, p.connection, step)
	return outcome(step.Method.Path, answer, end)
}

// outcome is OK for an answer, and otherwise how the call ended. A watcher is refused in an answer.
func outcome(method string, answer []byte, end error) string {
	switch {
	case errors.Is(end, io.EOF):
		return "OK without an answer"
	case end != nil:
		how := status.Convert(end)
		return how.Code().String() + ": " + how.Message()
	case method == "/etcdserverpb.Watch/Watch":
		var response pb.WatchResponse
		if err := proto.Unmarshal(answer, &response); err != nil {
			return err.Error()
		}
		if response.Canceled {
			return "canceled: " + response.CancelReason
		}
	}
	return "OK"
}

func (p *matrixPlayer) letter(outcome string) (byte, error) {
	for i, known := range p.outcomes {
		if known == outcome {
			return letters[i], nil
		}
	}
	if len(p.outcomes) == len(letters) {
		return 0, fmt.Errorf("more than %d outcomes; the last: %s", len(letters), outcome)
	}
	p.outcomes = append(p.outcomes, outcome)
	return letters[len(p.outcomes)-1], nil
}

// encodeMatrix writes JSON with one line for each outcome and each row.
func encodeMatrix(m *script.Matrix, outcomes []string, rows []matrixRow) ([]byte, error) {
	head := object{}
	head.add("matrix", m.Name)
	head.add("about", m.About)
	head.add("garbage", garbage)
	head.add("flags", matrixFlags)
	head.add("credentials", m.Credentials)
	legend := object{}
	for i, outcome := range outcomes {
		legend.add(string(letters[i]), outcome)
	}
	var lines []string
	for _, row := range rows {
		line, err := json.Marshal(row)
		if err != nil {
			return nil, err
		}
		lines = append(lines, string(line))
	}
	return []byte("{\n" + head.text() + ",\n\"outcomes\": {\n" + legend.text() + "\n},\n\"rows\": [\n" +
		strings.Join(lines, ",\n") + "\n]\n}\n"), nil
}
