import com.google.re2j.Pattern;
import com.google.re2j.PatternSyntaxException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;

/** Reads lines of a pattern and names, with tabs between; says of each which names it matches, or that it is bad. */
public final class Patterns {
    public static void main(String[] arguments) throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder answers = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.append(answer(line.split("\t", -1))).append('\n');
        }
        System.out.print(answers);
    }

    private static String answer(String[] asked) {
        try {
            Pattern pattern = Pattern.compile(asked[0]);
            StringBuilder matched = new StringBuilder();
            for (int place = 1; place < asked.length; place++) {
                matched.append(pattern.matcher(asked[place]).matches() ? 'y' : 'n');
            }
            return matched.toString();
        } catch (PatternSyntaxException bad) {
            return "bad";
        }
    }
}
