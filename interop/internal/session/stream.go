package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	"kv-server/interop/internal/script"
)

// arrivalsMax is how many answers may wait to be expected: more than any script lets arrive. Beyond it the stream waits.
const arrivalsMax = 4096

// Stream is a call that goes on while others are made. Answers are kept until they are taken.
type Stream struct {
	stream   grpc.ClientStream
	cancel   context.CancelFunc
	arrivals chan arrival
}

// arrival is an answer, or the end of the call.
type arrival struct {
	answer []byte
	end    error
}

// Open starts the call of a step. A call that takes one request gets it, and is half-closed.
func Open(connection *grpc.ClientConn, step script.Step) (*Stream, error) {
	method, body := step.Method, step.Body
	ctx, cancel := context.WithCancel(WithMetadata(context.Background(), step))
	description := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := connection.NewStream(ctx, description, method.Path)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &Stream{stream: stream, cancel: cancel, arrivals: make(chan arrival, arrivalsMax)}
	go s.receive()
	if body != nil {
		if err := s.Send(body); err != nil {
			return nil, err
		}
	}
	if !method.Sends {
		return s, s.CloseSend()
	}
	return s, nil
}

func (s *Stream) receive() {
	for {
		var answer []byte
		err := s.stream.RecvMsg(&answer)
		s.arrivals <- arrival{answer, err}
		if err != nil {
			return
		}
	}
}

// Send sends one request. It does not fail when the server has ended the call: the status comes after the answers.
func (s *Stream) Send(body []byte) error {
	if err := s.stream.SendMsg(body); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// CloseSend half-closes the stream.
func (s *Stream) CloseSend() error { return s.stream.CloseSend() }

// Cancel resets the stream.
func (s *Stream) Cancel() { s.cancel() }

// Take returns the next count answers.
func (s *Stream) Take(count int, patience time.Duration) ([][]byte, error) {
	var answers [][]byte
	for len(answers) < count {
		next, err := s.next(patience)
		switch {
		case err != nil:
			return answers, fmt.Errorf("%d of %d answers: %w", len(answers), count, err)
		case next.end != nil:
			return answers, fmt.Errorf("%d of %d answers, then the end: %w", len(answers), count, next.end)
		}
		answers = append(answers, next.answer)
	}
	return answers, nil
}

// End returns the answers that are left and how the call ended, nil for OK.
func (s *Stream) End(patience time.Duration) (answers [][]byte, end error, err error) {
	for {
		next, err := s.next(patience)
		switch {
		case err != nil:
			return answers, nil, err
		case errors.Is(next.end, io.EOF):
			return answers, nil, nil
		case next.end != nil:
			return answers, next.end, nil
		}
		answers = append(answers, next.answer)
	}
}

// Silent fails where an answer, or the end, has arrived and was not taken.
func (s *Stream) Silent() error {
	if left := len(s.arrivals); left > 0 {
		next := <-s.arrivals
		return fmt.Errorf("%d arrivals that no step expects; the first: %q, %v", left, next.answer, next.end)
	}
	return nil
}

func (s *Stream) next(patience time.Duration) (arrival, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case next := <-s.arrivals:
		return next, nil
	case <-timer.C:
		return arrival{}, fmt.Errorf("nothing arrived for %v", patience)
	}
}
