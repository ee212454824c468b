// Sarama: it speaks as the version that it is told, so each job is done as several.
package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"ballast.dev/tests/clients/reach"
	"github.com/IBM/sarama"
)

var (
	versions = []sarama.KafkaVersion{sarama.V2_1_0_0, sarama.V2_8_0_0, sarama.V3_9_0_0, sarama.MaxVersion}
	codecs   = []sarama.CompressionCodec{
		sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD,
	}
)

func main() {
	reach.Given().Run(map[string]func(reach.Way){"versions": func(way reach.Way) {
		for _, version := range versions {
			topic := way.Topic + "-" + version.String()
			admin, err := sarama.NewClusterAdmin(way.Brokers, config(way, version))
			reach.Check(err)
			detail := &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: int16(way.Replicas())}
			reach.Check(admin.CreateTopic(topic, detail, false))
			sent := send(way, version, topic)
			seen := group(way, version, topic, sent)
			reach.Check(admin.DeleteConsumerGroup(topic))
			reach.Check(admin.DeleteTopic(topic))
			reach.Check(admin.Close())
			reach.Tell("version", version.String(), "sent", sent, "seen", seen)
		}
	}})
}

func config(way reach.Way, version sarama.KafkaVersion) *sarama.Config {
	made := sarama.NewConfig()
	made.Version = version
	made.Producer.Return.Successes = true
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	made.Consumer.IsolationLevel = sarama.ReadCommitted
	made.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	made.Consumer.Group.Session.Timeout = 6 * time.Second
	made.Net.TLS.Enable, made.Net.TLS.Config = way.TLS != nil, way.TLS
	made.Net.SASL.Enable, made.Net.SASL.User, made.Net.SASL.Password = way.User != "", way.User, way.Password
	return made
}

// In each codec: as it comes, as an idempotent producer, and in transactions, of which one is aborted.
func send(way reach.Way, version sarama.KafkaVersion, topic string) int {
	sent := 0
	for number, codec := range codecs {
		settings := config(way, version)
		settings.Producer.Compression = codec
		if number > 0 {
			settings.Producer.Idempotent = true
			settings.Producer.RequiredAcks = sarama.WaitForAll
			settings.Net.MaxOpenRequests = 1
		}
		if number > 2 {
			settings.Producer.Transaction.ID = topic
		}
		producer, err := sarama.NewSyncProducer(way.Brokers, settings)
		reach.Check(err)
		for _, committed := range []bool{true, false} {
			if producer.IsTransactional() {
				reach.Check(producer.BeginTxn())
			} else if !committed {
				continue
			}
			reach.Check(producer.SendMessages(messages(topic, codec, committed)))
			if !producer.IsTransactional() || committed {
				sent += perCodec
			}
			if producer.IsTransactional() {
				reach.Check(map[bool]func() error{true: producer.CommitTxn, false: producer.AbortTxn}[committed]())
			}
		}
		reach.Check(producer.Close())
	}
	return sent
}

const perCodec = 50

func messages(topic string, codec sarama.CompressionCodec, committed bool) []*sarama.ProducerMessage {
	made := make([]*sarama.ProducerMessage, perCodec)
	for i := range made {
		value := fmt.Sprintf("%s %d %t", codec, i, committed)
		made[i] = &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)}
	}
	return made
}

type member struct{ arrived chan string }

func (member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (one member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		session.MarkMessage(message, "")
		one.arrived <- string(message.Value)
	}
	return nil
}

// Two members read everything once it is committed.
func group(way reach.Way, version sarama.KafkaVersion, topic string, wanted int) int {
	settings := config(way, version)
	settings.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategySticky()}
	ctx, stop := context.WithCancel(way.Context)
	one, members := member{make(chan string, 10_000)}, sync.WaitGroup{}
	for range 2 {
		group, err := sarama.NewConsumerGroup(way.Brokers, topic, settings)
		reach.Check(err)
		members.Go(func() {
			for ctx.Err() == nil {
				reach.Check(group.Consume(ctx, []string{topic}, one))
			}
			reach.Check(group.Close())
		})
	}
	seen := map[string]bool{}
	for len(seen) < wanted {
		seen[<-one.arrived] = true
	}
	stop()
	members.Wait()
	return len(seen)
}
