// Package reach is what the programs have in common: how they come to the cluster, and how they tell what they saw.
package reach

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

const limit = 100 * time.Second

// A Way to a cluster, given as JOB ADDRESS,ADDRESS TOPIC; who comes in by TLS and a password is named by the environment.
type Way struct {
	Job      string
	Brokers  []string
	Topic    string
	User     string
	Password string
	TLS      *tls.Config // nil without
	Context  context.Context
}

func Given() Way {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: JOB ADDRESS,... TOPIC")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	context.AfterFunc(ctx, func() { Check(context.Cause(ctx)) })
	_ = cancel // with the process
	way := Way{Job: os.Args[1], Brokers: strings.Split(os.Args[2], ","), Topic: os.Args[3], Context: ctx}
	way.User, way.Password = os.Getenv("CLIENT_USER"), os.Getenv("CLIENT_PASSWORD")
	if file := os.Getenv("CLIENT_CA"); file != "" {
		pem, err := os.ReadFile(file)
		Check(err)
		known := x509.NewCertPool()
		if !known.AppendCertsFromPEM(pem) {
			Check(fmt.Errorf("no certificate in %s", file))
		}
		way.TLS = &tls.Config{RootCAs: known}
	}
	return way
}

// Replicas of a topic: as many as there are brokers to ask, at most three.
func (way Way) Replicas() int { return min(3, len(way.Brokers)) }

// Run does the job of this name.
func (way Way) Run(jobs map[string]func(Way)) {
	job, ok := jobs[way.Job]
	if !ok {
		fmt.Fprintln(os.Stderr, "no job", way.Job)
		os.Exit(2)
	}
	job(way)
}

// Tell prints a line of JSON: names and what belongs to them, in turn.
func Tell(pairs ...any) {
	line := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		line[pairs[i].(string)] = pairs[i+1]
	}
	text, err := json.Marshal(line)
	Check(err)
	fmt.Println(string(text))
}

func Check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "failed:", err)
		os.Exit(1)
	}
}

// Sums tells whether what was sent came back: each value as often as it was sent.
type Sums map[string]int

func (sums Sums) Sent(value []byte)     { sums[string(value)]++ }
func (sums Sums) Received(value []byte) { sums[string(value)]-- }

func (sums Sums) Differing() int {
	count := 0
	for _, left := range sums {
		if left != 0 {
			count++
		}
	}
	return count
}
