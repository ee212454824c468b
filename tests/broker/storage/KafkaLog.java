// Opens a partition folder with Apache Kafka's own log, optionally appends to it, and prints what it sees as lines
// "name value". Arguments: folder, clean|unclean, number of batches to append, close|halt,
// timestamp of the first record; "transactions", if the batches are to be those of transactions.
import java.io.File;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public class KafkaLog {
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        properties.put("segment.bytes", "1048576");
        properties.put("internal.segment.bytes", "4000");
        properties.put("index.interval.bytes", "200");
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        UnifiedLog log = UnifiedLog.create(new File(args[0]), new LogConfig(properties), 0L, 0L, scheduler,
            new BrokerTopicStats(), Time.SYSTEM, 300000, new ProducerStateManagerConfig(86400000, false), 600000,
            new LogDirFailureChannel(10), args[1].equals("clean"), Optional.empty());
        System.out.println("first_end " + log.logEndOffset());
        long first = Long.parseLong(args[4]);
        int batches = Integer.parseInt(args[2]);
        if (args.length > 5) {
            transactions(log, batches, first);
            batches = 0;
        }
        for (int n = 0; n < batches; n++) {
            SimpleRecord[] records = new SimpleRecord[3];
            for (int r = 0; r < 3; r++) {
                records[r] = new SimpleRecord(first + 3 * n + r, ("k" + n).getBytes(), ("value" + r).getBytes());
            }
            Compression compression = n % 2 == 0 ? Compression.NONE : Compression.zstd().build();
            log.appendAsLeader(MemoryRecords.withIdempotentRecords(compression, 77L, (short) 1, 3 * n, records),
                Math.max(n / 20, log.latestEpoch().orElse(0)));
        }
        System.out.println("end " + log.logEndOffset());
        System.out.println("start " + log.logStartOffset());
        System.out.println("segments " + log.numberOfSegments());
        System.out.println("epochs " + log.leaderEpochCache().epochEntries());
        System.out.println("topic_id " + log.topicId().map(Object::toString).orElse("none"));
        log.producerStateManager().activeProducers().forEach((id, state) -> System.out.println(
            "producer" + id + " " + state.producerEpoch() + " " + state.lastSeq() + " " + state.lastDataOffset()));
        log.updateHighWatermark(log.logEndOffset());
        System.out.println("stable " + log.lastStableOffset());
        log.collectAbortedTransactions(0, log.logEndOffset()).forEach(each -> System.out.println(
            "aborted" + each.lastOffset() + " " + each.producerId() + " " + each.firstOffset() + " "
                + each.lastStableOffset()));
        log.producerStateManager().activeProducers().forEach((id, state) -> System.out.println(
            "transaction" + id + " " + state.currentTxnFirstOffset().orElse(-1) + " " + state.coordinatorEpoch()));
        long offset = log.logStartOffset();
        long count = 0;
        long sum = 0;
        while (offset < log.logEndOffset()) {
            for (Record record : log.read(offset, 10000, FetchIsolation.LOG_END, true).records.records()) {
                if (record.offset() >= offset) {
                    count++;
                    sum += record.offset() * 31 + record.timestamp() % 1000003 + record.valueSize();
                }
                offset = Math.max(offset, record.offset() + 1);
            }
        }
        System.out.println("records " + count + " " + sum);
        System.out.println("timestamp " + log.fetchOffsetByTimestamp(first + 50, Optional.empty())
            .timestampAndOffsetOpt().map(found -> found.timestamp + " " + found.offset).orElse("none"));
        System.out.flush();
        if (args[3].equals("close")) {
            log.close();
        }
        Runtime.getRuntime().halt(0);
    }

    // Three producers in turn. One commits, one aborts, the third aborts with another epoch; the last two stay open.
    private static void transactions(UnifiedLog log, int batches, long first) throws Exception {
        int[] sequences = new int[3];
        short[] epochs = new short[3];
        for (int n = 0; n < batches; n++) {
            int producer = n % 3;
            SimpleRecord record = new SimpleRecord(first + n, ("k" + n).getBytes(), "transactional".getBytes());
            log.appendAsLeader(MemoryRecords.withTransactionalRecords(Compression.NONE, 100L + producer,
                epochs[producer], sequences[producer]++, record), 0);
            if (n % 4 == 3 && n < batches - 3) {
                boolean bumps = producer == 2;
                if (bumps) {
                    epochs[producer]++;
                    sequences[producer] = 0;
                }
                ControlRecordType type = producer == 0 ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
                log.appendAsLeader(MemoryRecords.withEndTransactionMarker(first + n, 100L + producer,
                    epochs[producer], new EndTransactionMarker(type, 7)), 0, AppendOrigin.COORDINATOR);
            }
        }
    }
}
