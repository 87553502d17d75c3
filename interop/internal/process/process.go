// Package process runs a real server, etcd or ours, for as long as a test or a recording needs it.
//
//   - Loopback only, ports that no other test takes, a data directory of its own.
//   - Started means: it has said that it is ready to serve client requests, and its cluster has a version. Until then
//     etcd refuses every downgrade, with another error than later.
//
// Both servers take the same flags; nothing here knows which one it is.
package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	readyLine = "ready to serve client requests"
	// A start on a busy machine: far above what either server takes when left alone.
	readyTimeout = 2 * time.Minute
	stopTimeout  = time.Minute
)

// Member is one server process.
type Member struct {
	Name      string
	ClientURL string
	PeerURL   string
	DataDir   string
	// All members, as the flag --initial-cluster names them.
	InitialCluster string

	binary string
	args   []string
	log    string
	cmd    *exec.Cmd
	exited chan struct{}
}

// Token is the token of every cluster.
const Token = "interop"

// Beside is the path of another program in the directory of this one.
func Beside(binary, name string) string { return filepath.Join(filepath.Dir(binary), name) }

// Start runs a cluster of the given size below dir and returns when every member is ready.
func Start(binary, dir string, size int) ([]*Member, error) {
	members, err := Prepare(binary, dir, size)
	if err != nil {
		return nil, err
	}
	return members, StartAll(members)
}

// Prepare chooses addresses and directories for a cluster of the given size below dir, and starts nothing.
func Prepare(binary, dir string, size int) ([]*Member, error) {
	ports, err := FreePorts(2 * size)
	if err != nil {
		return nil, err
	}
	var initial []string
	for i := range size {
		initial = append(initial, fmt.Sprintf("m%d=http://127.0.0.1:%d", i+1, ports[2*i+1]))
	}
	var members []*Member
	for i := range size {
		name := fmt.Sprintf("m%d", i+1)
		client := fmt.Sprintf("http://127.0.0.1:%d", ports[2*i])
		peer := fmt.Sprintf("http://127.0.0.1:%d", ports[2*i+1])
		dataDir, all := filepath.Join(dir, name), strings.Join(initial, ",")
		members = append(members, &Member{
			Name: name, ClientURL: client, PeerURL: peer, DataDir: dataDir, InitialCluster: all,
			binary: binary, log: filepath.Join(dir, name+".log"),
			args: []string{
				"--name", name, "--data-dir", dataDir,
				"--listen-client-urls", client, "--advertise-client-urls", client,
				"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
				"--initial-cluster", all, "--initial-cluster-token", Token,
				"--log-level", "info",
			},
		})
	}
	return members, nil
}

// StartAll starts members side by side: none is ready before most of them run.
func StartAll(members []*Member) error {
	errs := make([]error, len(members))
	var all sync.WaitGroup
	for i, member := range members {
		all.Go(func() { errs[i] = member.Start() })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, member := range members {
			member.Kill()
		}
		return err
	}
	return nil
}

// Start runs the member, also again after it was killed, and waits until it is ready.
func (m *Member) Start() error {
	logFile, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command(m.binary, m.args...)
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", m.binary, err)
	}
	_ = write.Close() // the child holds its own end: ours would keep the pipe open after its death
	m.cmd, m.exited = cmd, make(chan struct{})
	ready := make(chan struct{})
	go watchLog(read, logFile, ready)
	go func(exited chan struct{}) {
		_ = cmd.Wait() // how it ended is in its log
		close(exited)
	}(m.exited)
	select {
	case <-ready:
		return m.awaitVersion()
	case <-m.exited:
		return fmt.Errorf("%s exited before it was ready:\n%s", m.Name, m.LogTail())
	case <-time.After(readyTimeout):
		m.Kill()
		return fmt.Errorf("%s not ready after %v:\n%s", m.Name, readyTimeout, m.LogTail())
	}
}

// awaitVersion returns when the cluster has a version.
func (m *Member) awaitVersion() error {
	deadline := time.Now().Add(readyTimeout)
	for time.Now().Before(deadline) {
		if answer, err := http.Get(m.ClientURL + "/version"); err == nil {
			text, err := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			if err == nil && answer.StatusCode == http.StatusOK && !strings.Contains(string(text), "not_decided") {
				return nil
			}
		}
		select {
		case <-m.exited:
			return fmt.Errorf("%s exited before its cluster had a version:\n%s", m.Name, m.LogTail())
		case <-time.After(10 * time.Millisecond):
		}
	}
	m.Kill()
	return fmt.Errorf("the cluster of %s has no version after %v:\n%s", m.Name, readyTimeout, m.LogTail())
}

// watchLog copies the output to the log file and closes ready at the first ready line.
func watchLog(from io.ReadCloser, to *os.File, ready chan struct{}) {
	defer from.Close()
	defer to.Close()
	lines := bufio.NewReader(from)
	seen := false
	for {
		line, err := lines.ReadString('\n')
		_, _ = to.WriteString(line)
		if !seen && strings.Contains(line, readyLine) {
			seen = true
			close(ready)
		}
		if err != nil {
			return
		}
	}
}

// AddFlags adds flags for the starts that follow.
func (m *Member) AddFlags(flags ...string) { m.args = append(m.args, flags...) }

// Kill ends the process as a crash would, and returns when it is gone.
func (m *Member) Kill() { m.end(syscall.SIGKILL) }

// Stop asks the process to end, and returns when it is gone.
func (m *Member) Stop() { m.end(syscall.SIGTERM) }

// Pause stops the process until Resume.
func (m *Member) Pause() { _ = m.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (m *Member) Resume() { _ = m.cmd.Process.Signal(syscall.SIGCONT) }

func (m *Member) end(signal syscall.Signal) {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Signal(signal) // already gone is as good
	select {
	case <-m.exited:
	case <-time.After(stopTimeout):
		_ = m.cmd.Process.Kill()
		<-m.exited
	}
	m.cmd = nil
}

// Usage is the processor time of the running process so far, and its resident memory in bytes.
func (m *Member) Usage() (cpu time.Duration, resident int64, err error) {
	if m.cmd == nil {
		return 0, 0, fmt.Errorf("%s is not running", m.Name)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	// The name of the program, in parentheses, may have spaces. User and system time are fields 14 and 15, in
	// ticks of 10 ms on every Linux; resident pages are field 24.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var numbers [3]int64
	for i, field := range []int{14, 15, 24} {
		if numbers[i], err = strconv.ParseInt(fields[field-3], 10, 64); err != nil {
			return 0, 0, err
		}
	}
	return time.Duration(numbers[0]+numbers[1]) * 10 * time.Millisecond, numbers[2] * int64(os.Getpagesize()), nil
}

// LogTail returns the last lines that the member wrote.
func (m *Member) LogTail() string {
	text, err := os.ReadFile(m.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}

// The range that crates/testkit/src/ports.rs chooses from, and the distance between two processes there.
const portsFirst, portsCount, stride = 10000, 10000, 211

// leases holds a locked file for each port that this process was given, until it ends.
var leases struct {
	sync.Mutex
	tried int
	files []*os.File
}

// FreePorts returns ports that no other test and no outgoing connection takes while this process runs, by the
// rules of crates/testkit/src/ports.rs and with the same lock files.
func FreePorts(count int) ([]int, error) {
	leases.Lock()
	defer leases.Unlock()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("kv-server-test-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var ports []int
	for ; len(ports) < count; leases.tried++ {
		if leases.tried == portsCount {
			return nil, errors.New("all ports for tests are in use")
		}
		port := portsFirst + (os.Getpid()*stride+leases.tried)%portsCount
		file, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			file.Close()
			continue
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			file.Close()
			continue
		}
		listener.Close()
		leases.files = append(leases.files, file)
		ports = append(ports, port)
	}
	return ports, nil
}
