import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/** Asks Apache Kafka's own assignors: a line of JSON is a group, and the line that comes back is who has what. */
public class Assignors {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(json.writeValueAsString(assign(json.readTree(line))));
        }
    }

    static Map<String, Map<String, Set<Integer>>> assign(JsonNode group) throws Exception {
        Map<Uuid, Integer> counts = new HashMap<>();
        group.get("partitions").fields().forEachRemaining(e -> counts.put(id(e.getKey()), e.getValue().asInt()));
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        for (JsonNode member : group.get("members")) {
            String name = member.get("id").asText();
            Set<Uuid> topics = new HashSet<>();
            member.get("topics").forEach(t -> topics.add(id(t.asText())));
            Map<Uuid, Set<Integer>> target = new HashMap<>();
            member.get("target").fields().forEachRemaining(e -> {
                Set<Integer> numbers = new HashSet<>();
                for (JsonNode number : e.getValue()) {
                    numbers.add(number.asInt());
                    owners.computeIfAbsent(id(e.getKey()), x -> new HashMap<>()).put(number.asInt(), name);
                }
                target.put(id(e.getKey()), numbers);
            });
            Optional<String> instance = Optional.ofNullable(member.get("instance").textValue());
            members.put(name, new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), instance, topics, new Assignment(Collections.unmodifiableMap(target))));
        }
        boolean alike = group.get("alike").asBoolean();
        SubscriptionType type = alike ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        boolean range = group.get("assignor").asText().equals("range");
        ConsumerGroupPartitionAssignor assignor = range ? new RangeAssignor() : new UniformAssignor();
        SubscribedTopicDescriber describer = new SubscribedTopicDescriber() {
            @Override
            public int numPartitions(Uuid topic) {
                return counts.getOrDefault(topic, -1);
            }

            @Override
            public Set<String> racksForPartition(Uuid topic, int partition) {
                return Set.of();
            }
        };
        Map<String, Map<String, Set<Integer>>> found = new TreeMap<>();
        assignor.assign(new GroupSpecImpl(members, type, owners), describer).members().forEach((name, own) -> {
            Map<String, Set<Integer>> partitions = new TreeMap<>();
            own.partitions().forEach((topic, numbers) -> partitions.put(topic.toString(), new TreeSet<>(numbers)));
            found.put(name, partitions);
        });
        return found;
    }

    static Uuid id(String text) {
        return Uuid.fromString(text);
    }
}
