// franz-go: every codec, groups of both protocols, exactly once from topic to topic, and an order that survives kills.
package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"ballast.dev/tests/clients/reach"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const (
	heartbeat = 300 * time.Millisecond
	session   = 6 * time.Second
)

func main() {
	reach.Given().Run(map[string]func(reach.Way){
		"codecs":       codecs,
		"classic":      func(way reach.Way) { group(way, kgo.Balancers(kgo.CooperativeStickyBalancer())) },
		"consumer":     func(way reach.Way) { group(way, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer())) },
		"exactly-once": exactlyOnce,
		"follow":       follow,
		"directories":  directories,
	})
}

func options(way reach.Way, more ...kgo.Opt) []kgo.Opt {
	chosen := []kgo.Opt{
		kgo.SeedBrokers(way.Brokers...),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
	}
	if way.TLS != nil {
		chosen = append(chosen, kgo.DialTLSConfig(way.TLS))
	}
	if way.User != "" {
		chosen = append(chosen, kgo.SASL(scram.Auth{User: way.User, Pass: way.Password}.AsSha512Mechanism()))
	}
	return append(chosen, more...)
}

func client(way reach.Way, more ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(options(way, more...)...)
	reach.Check(err)
	return made
}

func create(way reach.Way, admin *kadm.Client, topic string, partitions int32, configs map[string]*string) {
	_, err := admin.CreateTopic(way.Context, partitions, int16(way.Replicas()), configs, topic)
	reach.Check(err)
}

// Every codec, small records and one of nine megabytes, headers, and values that are null.
func codecs(way reach.Way) {
	cl := client(way)
	defer cl.Close()
	largest := "12000000"
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		topic := way.Topic + "-" + name
		create(way, kadm.NewClient(cl), topic, 3, map[string]*string{"max.message.bytes": &largest})
		sums, count := reach.Sums{}, 300
		sender := client(way, kgo.ProducerBatchCompression(codec), kgo.ProducerBatchMaxBytes(11_000_000))
		for i := range count {
			record := &kgo.Record{Topic: topic, Key: []byte(fmt.Sprint(i)), Headers: []kgo.RecordHeader{{Key: "null"}}}
			if i == 0 {
				record.Value = bytes.Repeat([]byte("nine bytes"), 900_000)
			} else if i%10 != 0 {
				record.Value = bytes.Repeat([]byte{byte(i)}, i)
			}
			sums.Sent(of(record))
			sender.Produce(way.Context, record, func(_ *kgo.Record, err error) { reach.Check(err) })
		}
		reach.Check(sender.Flush(way.Context))
		sender.Close()
		reader := client(way, kgo.ConsumeTopics(topic))
		for received := 0; received < count; {
			for _, record := range polled(way.Context, reader) {
				sums.Received(of(record))
				received++
			}
		}
		reader.Close()
		reach.Tell("codec", name, "differing", sums.Differing())
	}
}

func of(record *kgo.Record) []byte {
	return fmt.Appendf(nil, "%s %t %v %s", record.Key, record.Value == nil, record.Headers, record.Value)
}

func polled(ctx context.Context, reader *kgo.Client) []*kgo.Record {
	fetches := reader.PollFetches(ctx)
	reach.Check(fetches.Err())
	return fetches.Records()
}

// Members come, leave and stop without leaving; topics are found by a pattern. Nothing is missed, and the offsets that
// are committed in the end are those of all records.
func group(way reach.Way, balancing ...kgo.Opt) {
	cl := client(way, kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	defer cl.Close()
	admin := kadm.NewClient(cl)
	create(way, admin, way.Topic+"-a", 6, nil)
	arrived := make(chan string, 10_000)
	join := func() *kgo.Client {
		member := client(way, append([]kgo.Opt{
			kgo.ConsumerGroup(way.Topic), kgo.ConsumeRegex(), kgo.ConsumeTopics("^" + way.Topic + "-[ab]$"),
			kgo.MetadataMaxAge(500 * time.Millisecond), kgo.AutoCommitInterval(200 * time.Millisecond),
			kgo.HeartbeatInterval(heartbeat), kgo.SessionTimeout(session),
		}, balancing...)...)
		go func() {
			for {
				fetches := member.PollFetches(way.Context)
				if fetches.IsClientClosed() {
					return
				}
				fetches.EachRecord(func(record *kgo.Record) { arrived <- string(record.Value) })
			}
		}()
		return member
	}
	seen := map[string]bool{}
	sent := 0
	each := func(topic, when string) {
		for range 60 {
			sent++
			record := &kgo.Record{Topic: topic, Value: []byte(fmt.Sprint(sent))}
			reach.Check(cl.ProduceSync(way.Context, record).FirstErr())
		}
		for len(seen) < sent {
			seen[<-arrived] = true
		}
		reach.Tell("when", when, "seen", len(seen))
	}
	first := join()
	each(way.Topic+"-a", "one member")
	second, third := join(), join()
	members(way, admin, 3)
	each(way.Topic+"-a", "three members")
	create(way, admin, way.Topic+"-b", 3, nil)
	each(way.Topic+"-b", "another topic")
	third.Close()
	members(way, admin, 2)
	each(way.Topic+"-a", "one left")
	for _, member := range []*kgo.Client{first, second} {
		reach.Check(member.CommitUncommittedOffsets(way.Context))
		member.Close()
	}
	members(way, admin, 0)
	committed, total := admin.FetchManyOffsets(way.Context, way.Topic), int64(0)
	committed[way.Topic].Fetched.Each(func(offset kadm.OffsetResponse) { total += offset.At })
	_, err := admin.DeleteGroup(way.Context, way.Topic)
	reach.Check(err)
	reach.Tell("when", "all left", "committed", total)
}

// members waits until the group, of whichever protocol, has settled with so many.
func members(way reach.Way, admin *kadm.Client, count int) {
	for {
		classic, _ := admin.DescribeGroups(way.Context, way.Topic)
		next, _ := admin.DescribeConsumerGroups(way.Context, way.Topic)
		for state, there := range map[string]int{
			classic[way.Topic].State: len(classic[way.Topic].Members),
			next[way.Topic].State:    len(next[way.Topic].Members),
		} {
			if there == count && (state == "Stable" || state == "Empty") {
				return
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// From one topic to another in transactions, every fifth of which is aborted, while workers come and go: the one who
// reads committed records finds each once.
func exactlyOnce(way reach.Way) {
	cl := client(way, kgo.DefaultProduceTopic(way.Topic+"-in"))
	defer cl.Close()
	admin, count := kadm.NewClient(cl), 600
	create(way, admin, way.Topic+"-in", 4, nil)
	create(way, admin, way.Topic+"-out", 3, nil)
	go func() {
		for i := range count {
			reach.Check(cl.ProduceSync(way.Context, kgo.StringRecord(fmt.Sprint(i))).FirstErr())
		}
	}()
	var workers sync.WaitGroup
	untilDone, done := context.WithCancel(way.Context)
	workers.Go(func() {
		brief, enough := context.WithTimeout(untilDone, 500*time.Millisecond)
		defer enough()
		transform(brief, way, "a")
		transform(untilDone, way, "a")
	})
	workers.Go(func() { transform(untilDone, way, "b") })
	reader := client(way, kgo.ConsumeTopics(way.Topic+"-out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer reader.Close()
	seen, received := map[string]bool{}, 0
	take := func(records []*kgo.Record) {
		for _, record := range records {
			seen[string(record.Value)] = true
			received++
		}
	}
	for len(seen) < count {
		take(polled(way.Context, reader))
	}
	done()
	workers.Wait()
	marker := client(way, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(way.Topic+"-out"))
	defer marker.Close()
	for partition := range int32(3) {
		last := &kgo.Record{Partition: partition, Value: fmt.Appendf(nil, "last of %d", partition)}
		reach.Check(marker.ProduceSync(way.Context, last).FirstErr())
	}
	for len(seen) < count+3 {
		take(polled(way.Context, reader))
	}
	reach.Tell("seen", len(seen), "received", received)
}

func transform(until context.Context, way reach.Way, name string) {
	session, err := kgo.NewGroupTransactSession(options(way,
		kgo.TransactionalID(way.Topic+"-"+name), kgo.DefaultProduceTopic(way.Topic+"-out"),
		kgo.ConsumerGroup(way.Topic), kgo.ConsumeTopics(way.Topic+"-in"), kgo.RequireStableFetchOffsets(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.HeartbeatInterval(heartbeat), kgo.SessionTimeout(session),
	)...)
	reach.Check(err)
	defer session.Close()
	for number := 1; until.Err() == nil; number++ {
		records := session.PollRecords(until, 20).Records()
		if len(records) == 0 {
			continue
		}
		reach.Check(session.Begin())
		failure := kgo.AbortingFirstErrPromise(session.Client())
		for _, record := range records {
			session.Produce(way.Context, &kgo.Record{Value: record.Value}, failure.Promise())
		}
		wanted := failure.Err() == nil && number%5 != 0
		_, err := session.End(way.Context, kgo.TransactionEndTry(wanted))
		reach.Check(err)
	}
}

// Numbers go into each partition until standard input ends, while others kill leaders: the one who reads along finds
// them in order, none twice and none missing.
func follow(way reach.Way) {
	partitions, two := 6, "2"
	cl := client(way, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(way.Topic))
	defer cl.Close()
	create(way, kadm.NewClient(cl), way.Topic, int32(partitions), map[string]*string{"min.insync.replicas": &two})
	reader := client(way, kgo.ConsumeTopics(way.Topic))
	defer reader.Close()
	reach.Tell("when", "begun")
	ended := make(chan struct{})
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		close(ended)
	}()
	sent := 0
	produced := make(chan struct{})
	go func() {
		defer close(produced)
		for ; ; sent++ {
			select {
			case <-ended:
				reach.Check(cl.Flush(way.Context))
				return
			case <-time.After(time.Millisecond):
			}
			for partition := range partitions {
				record := &kgo.Record{Partition: int32(partition), Value: []byte(strconv.Itoa(sent))}
				cl.Produce(way.Context, record, func(_ *kgo.Record, err error) { reach.Check(err) })
			}
		}
	}()
	next := make([]int, partitions)
	wrong := []string{}
	read := func(ctx context.Context) {
		reader.PollFetches(ctx).EachRecord(func(record *kgo.Record) {
			number, err := strconv.Atoi(string(record.Value))
			reach.Check(err)
			if number != next[record.Partition] {
				wrong = append(wrong, fmt.Sprintf("%d: %d, not %d", record.Partition, number, next[record.Partition]))
			}
			next[record.Partition] = number + 1
		})
	}
	for writing := true; writing; {
		select {
		case <-produced:
			writing = false
		default:
			brief, enough := context.WithTimeout(way.Context, 200*time.Millisecond)
			read(brief)
			enough()
		}
	}
	for partition := 0; partition < partitions; {
		if next[partition] >= sent {
			partition++
			continue
		}
		read(way.Context)
	}
	reach.Tell("when", "ended", "sent", sent, "wrong", strings.Join(wrong, "; "))
}

// A partition goes to the other directory while it is read.
func directories(way reach.Way) {
	cl := client(way, kgo.DefaultProduceTopic(way.Topic))
	defer cl.Close()
	admin, count := kadm.NewClient(cl), 400
	create(way, admin, way.Topic, 1, nil)
	topics := kadm.TopicsSet{way.Topic: {0: {}}}
	var from, to string
	where := func() {
		described, err := admin.DescribeAllLogDirs(way.Context, topics)
		reach.Check(err)
		described.Each(func(directory kadm.DescribedLogDir) {
			if partition, ok := directory.Topics.Lookup(way.Topic, 0); ok && !partition.IsFuture {
				from = directory.Dir
			} else {
				to = directory.Dir
			}
		})
	}
	where()
	target := to
	reader := client(way, kgo.ConsumeTopics(way.Topic))
	defer reader.Close()
	sums := reach.Sums{}
	for i := range count {
		value := bytes.Repeat([]byte{byte(rand.Intn(256))}, 1+rand.Intn(5000))
		sums.Sent(value)
		reach.Check(cl.ProduceSync(way.Context, &kgo.Record{Value: value}).FirstErr())
		if i == count/2 {
			move := kadm.AlterReplicaLogDirsReq{}
			move.Add(target, topics)
			answers, err := admin.AlterAllReplicaLogDirs(way.Context, move)
			reach.Check(err)
			answers.Each(func(answer kadm.AlterReplicaLogDirsResponse) { reach.Check(answer.Err) })
		}
	}
	for received := 0; received < count; {
		for _, record := range polled(way.Context, reader) {
			sums.Received(record.Value)
			received++
		}
	}
	for from != target {
		where()
	}
	reach.Tell("moved", from == target, "differing", sums.Differing())
}
