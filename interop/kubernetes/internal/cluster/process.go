package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A process has this long to end after SIGTERM; then it is killed.
const stopTimeout = time.Minute

// process is a program that runs until it is ended by its id. Its output is appended to a file.
type process struct {
	name   string
	binary string
	args   []string
	log    string
	cmd    *exec.Cmd
	exited chan struct{}
}

func (p *process) start() error {
	output, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer output.Close()
	cmd := exec.Command(p.binary, p.args...)
	cmd.Stdout, cmd.Stderr = output, output
	// A check that is killed must not leave its servers behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.binary, err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(exited)
	}()
	p.cmd, p.exited = cmd, exited
	return nil
}

func (p *process) end(signal syscall.Signal) {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(signal) // it may have ended already
	select {
	case <-p.exited:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	p.cmd = nil
}

// logTail returns the last lines of the output.
func (p *process) logTail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}

// Usage is what a process took of the machine, or several did.
type Usage struct {
	CPU time.Duration
	// Resident memory: now, and at its highest since the start.
	ResidentBytes, PeakBytes int64
}

// usage is that of the running process.
func (p *process) usage() (Usage, error) {
	if p.cmd == nil {
		return Usage{}, fmt.Errorf("%s is not running", p.name)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return Usage{}, err
	}
	// The name of the program, in parentheses, may have spaces. User and system time are fields 14 and 15,
	// in ticks of 10 ms on every Linux; resident pages are field 24.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var numbers [3]int64
	for i, field := range []int{14, 15, 24} {
		if numbers[i], err = strconv.ParseInt(fields[field-3], 10, 64); err != nil {
			return Usage{}, err
		}
	}
	peak, err := p.peak()
	return Usage{
		CPU:           time.Duration(numbers[0]+numbers[1]) * 10 * time.Millisecond,
		ResidentBytes: numbers[2] * int64(os.Getpagesize()), PeakBytes: peak,
	}, err
}

// peak is the highest resident memory so far.
func (p *process) peak() (bytes int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, after, found := strings.Cut(string(status), "VmHWM:")
	if !found {
		return 0, fmt.Errorf("%s has no VmHWM", p.name)
	}
	kilobytes, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	return kilobytes << 10, err
}

// freePorts finds ports that no process listens on. They are below the range from which the kernel takes
// the ports of outgoing connections, so that a member finds its port free after a restart.
func freePorts(count int) ([]int, error) {
	var ports []int
	var held []net.Listener
	defer func() {
		for _, listener := range held {
			_ = listener.Close()
		}
	}()
	for tries := 0; len(ports) < count; tries++ {
		if tries == 1000 {
			return nil, fmt.Errorf("no %d free ports between 20000 and 29999", count)
		}
		port := 20000 + rand.IntN(10000)
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		held = append(held, listener)
		ports = append(ports, port)
	}
	return ports, nil
}
