package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// archiver is the process of `kvctl archive`, which is killed and started again.
type archiver struct {
	binary, place string
	urls          []string
	baseEvery     time.Duration

	mutex   sync.Mutex
	cmd     *exec.Cmd
	started time.Time
	exited  chan struct{}
	kills   int
	// Processor time and time of all its processes, and how far behind it was at most.
	used, ran, behind time.Duration
}

// head is the content of head.json: up to which revision and when all is archived.
type head struct {
	Revision int64 `json:"revision"`
	Time     int64 `json:"time_ms"`
}

// begin starts it for the first time and returns the first revision that can be restored.
func (a *archiver) begin() (int64, error) {
	if err := a.start(); err != nil {
		return 0, err
	}
	for began := time.Now(); time.Since(began) < patience; time.Sleep(50 * time.Millisecond) {
		if head, err := a.head(); err == nil && head.Revision > 0 {
			return head.Revision, nil
		}
		if err := a.alive(); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("no base after %v", patience)
}

func (a *archiver) start() error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	output, err := os.OpenFile(a.place+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer output.Close() // the child has its own
	cmd := exec.Command(a.binary, "archive", "--endpoints", strings.Join(a.urls, ","), "--to", a.place,
		"--base-every", a.baseEvery.String())
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(exited)
	}()
	a.cmd, a.started, a.exited = cmd, time.Now(), exited
	return nil
}

// kill ends it as a crash would, and counts what it used.
func (a *archiver) kill() {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.cmd == nil {
		return
	}
	_ = a.cmd.Process.Kill()
	<-a.exited
	a.used += a.cmd.ProcessState.UserTime() + a.cmd.ProcessState.SystemTime()
	a.ran += time.Since(a.started)
	a.kills++
	a.cmd = nil
}

// alive says why the process has ended by itself, if it has.
func (a *archiver) alive() error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.cmd == nil {
		return nil
	}
	select {
	case <-a.exited:
		text, _ := os.ReadFile(a.place + ".log")
		return fmt.Errorf("the archiver ended by itself:\n%s", text[max(0, len(text)-2000):])
	default:
		return nil
	}
}

func (a *archiver) head() (head, error) {
	var read head
	text, err := os.ReadFile(filepath.Join(a.place, "head.json"))
	if err != nil {
		return read, err
	}
	return read, json.Unmarshal(text, &read)
}

// sample keeps the greatest time between now and that up to which all is archived.
func (a *archiver) sample() {
	if head, err := a.head(); err == nil {
		a.behind = max(a.behind, time.Since(time.UnixMilli(head.Time)))
	}
}

func (a *archiver) waitFor(revision int64) error {
	for began := time.Now(); time.Since(began) < patience; time.Sleep(100 * time.Millisecond) {
		if head, err := a.head(); err == nil && head.Revision >= revision {
			return nil
		}
		if err := a.alive(); err != nil {
			return err
		}
	}
	head, err := a.head()
	return fmt.Errorf("not archived after %v: revision %d; the head has %d, %v",
		patience, revision, head.Revision, err)
}
