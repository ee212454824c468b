import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.common.security.kerberos.KerberosName;
import org.apache.kafka.common.security.kerberos.KerberosShortNamer;

/** Of each line, a principal and rules with tabs between: the name, or `-` and the kind of refusal. */
public class KerberosNames {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            List<String> words = Arrays.asList(line.split("\t", -1));
            System.out.println(answer(words.get(0), words.subList(1, words.size())));
        }
    }

    private static String answer(String principal, List<String> rules) {
        KerberosShortNamer namer;
        try {
            namer = KerberosShortNamer.fromUnparsedRules("EXAMPLE.COM", rules);
        } catch (RuntimeException error) {
            return "- rule";
        }
        try {
            return "+ " + namer.shortName(KerberosName.parse(principal));
        } catch (Exception error) {
            return "- name";
        }
    }
}
