// Package session calls a server with the bytes of a script's steps, and returns the bytes of its answers.
package session

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"kv-server/interop/internal/process"
	"kv-server/interop/internal/script"
)

// Dial connects to a member. Messages of any size pass, unparsed.
func Dial(member *process.Member, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	target := strings.TrimPrefix(member.ClientURL, "http://")
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}),
			grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
	return grpc.NewClient(target, options...)
}

// WithMetadata adds what the headers of a step's call have.
func WithMetadata(ctx context.Context, step script.Step) context.Context {
	if step.HasLeader {
		return metadata.AppendToOutgoingContext(ctx, "hasleader", "true")
	}
	return ctx
}

// Exchange sends one request and collects every answer up to the status.
func Exchange(ctx context.Context, connection *grpc.ClientConn, step script.Step) ([][]byte, error) {
	if !step.Method.Streams {
		var answer []byte
		if err := connection.Invoke(ctx, step.Method.Path, step.Body, &answer); err != nil {
			return nil, err
		}
		return [][]byte{answer}, nil
	}
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, step.Method.Path)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(step.Body); err != nil && !errors.Is(err, io.EOF) {
		return nil, err // EOF: the server has ended the call, and RecvMsg tells how
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	var answers [][]byte
	for {
		var answer []byte
		switch err := stream.RecvMsg(&answer); {
		case errors.Is(err, io.EOF):
			return answers, nil
		case err != nil:
			return answers, err
		}
		answers = append(answers, answer)
	}
}

// First sends one request and returns the first answer, or none and the end of the call. Every call is made as a stream of
// both directions: one message is a stream too.
func First(ctx context.Context, connection *grpc.ClientConn, step script.Step) (answer []byte, end error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	description := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := connection.NewStream(ctx, description, step.Method.Path)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(step.Body); err != nil && !errors.Is(err, io.EOF) {
		return nil, err // EOF: the server has ended the call, and RecvMsg returns its status
	}
	if !step.Method.Sends {
		if err := stream.CloseSend(); err != nil {
			return nil, err
		}
	}
	err = stream.RecvMsg(&answer)
	return answer, err
}

// rawCodec passes bytes through, under the name that every gRPC server knows.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(message any) ([]byte, error) { return message.([]byte), nil }

func (rawCodec) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}
