// segmentio's kafka-go: its connection with the old versions that it speaks, its writer, and readers in a group.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"ballast.dev/tests/clients/reach"
	kafka "github.com/segmentio/kafka-go"
)

var codecs = []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd}

func main() {
	reach.Given().Run(map[string]func(reach.Way){"connection": connection, "group": group})
}

func create(way reach.Way, partitions int) {
	connection, err := kafka.DialContext(way.Context, "tcp", way.Brokers[0])
	reach.Check(err)
	defer connection.Close()
	config := kafka.TopicConfig{Topic: way.Topic, NumPartitions: partitions, ReplicationFactor: way.Replicas()}
	reach.Check(connection.CreateTopics(config))
}

func connection(way reach.Way) {
	create(way, 1)
	leader, err := kafka.DialLeader(way.Context, "tcp", way.Brokers[0], way.Topic, 0)
	reach.Check(err)
	defer leader.Close()
	reach.Check(leader.SetDeadline(time.Now().Add(30 * time.Second)))
	sums := reach.Sums{}
	for number, codec := range codecs {
		value := fmt.Appendf(nil, "by codec %d", number)
		sums.Sent(value)
		message := kafka.Message{Value: value, Headers: []kafka.Header{{Key: "h", Value: []byte("v")}}}
		if number == 0 {
			_, err = leader.WriteMessages(message)
		} else {
			_, err = leader.WriteCompressedMessages(codec.Codec(), message)
		}
		reach.Check(err)
	}
	first, last, err := leader.ReadOffsets()
	reach.Check(err)
	_, err = leader.Seek(0, kafka.SeekStart)
	reach.Check(err)
	batch := leader.ReadBatch(1, 1<<20)
	for {
		message, err := batch.ReadMessage()
		if errors.Is(err, io.EOF) {
			break
		}
		reach.Check(err)
		sums.Received(message.Value)
	}
	reach.Check(batch.Close())
	_, err = leader.Seek(9999, kafka.SeekAbsolute|kafka.SeekDontCheck)
	reach.Check(err)
	beyond := leader.ReadBatch(1, 1<<20)
	_, err = beyond.ReadMessage()
	_ = beyond.Close()
	reach.Tell("first", first, "last", last, "differing", sums.Differing(),
		"beyond", errors.Is(err, kafka.OffsetOutOfRange))
}

// Two readers, of which one goes in the middle, read and commit what a writer of each codec has written.
func group(way reach.Way) {
	create(way, 4)
	sent := 0
	for _, codec := range codecs {
		writer := &kafka.Writer{
			Addr: kafka.TCP(way.Brokers...), Topic: way.Topic, Compression: codec, RequiredAcks: kafka.RequireAll,
			BatchTimeout: 5 * time.Millisecond, Balancer: &kafka.RoundRobin{},
		}
		messages := make([]kafka.Message, 100)
		for i := range messages {
			messages[i].Value = fmt.Appendf(nil, "%d", sent)
			sent++
		}
		reach.Check(writer.WriteMessages(way.Context, messages...))
		reach.Check(writer.Close())
	}
	arrived, readers := make(chan string, 10_000), sync.WaitGroup{}
	read := func(until context.Context) {
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: way.Brokers, GroupID: way.Topic, Topic: way.Topic, MaxWait: 300 * time.Millisecond,
			StartOffset: kafka.FirstOffset, HeartbeatInterval: 300 * time.Millisecond, SessionTimeout: 6 * time.Second,
			JoinGroupBackoff: 200 * time.Millisecond,
		})
		for until.Err() == nil {
			message, err := reader.FetchMessage(until)
			if until.Err() != nil {
				break
			}
			reach.Check(err)
			reach.Check(reader.CommitMessages(way.Context, message))
			arrived <- string(message.Value)
		}
		reach.Check(reader.Close())
	}
	all, stopAll := context.WithCancel(way.Context)
	brief, stopOne := context.WithCancel(all)
	defer stopOne()
	readers.Go(func() { read(all) })
	readers.Go(func() { read(brief) })
	seen := map[string]bool{}
	for len(seen) < sent {
		seen[<-arrived] = true
		if len(seen) == sent/2 {
			stopOne()
		}
	}
	stopAll()
	readers.Wait()
	reach.Tell("sent", sent, "seen", len(seen))
}
