import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import software.amazon.event.ruler.Machine;

/** Adds the patterns of a file to a machine, matches the events of another, writes the matches. */
public class RulerBench {
    public static void main(String[] arguments) throws Exception {
        List<String> patterns = Files.readAllLines(Path.of(arguments[0]));
        List<String> events = Files.readAllLines(Path.of(arguments[1]));
        int warm = Integer.parseInt(arguments[3]);
        Machine machine = new Machine();
        long start = System.nanoTime();
        for (int i = 0; i < patterns.size(); i++) {
            machine.addRule(Integer.toString(i), patterns.get(i));
        }
        double loading = (System.nanoTime() - start) / 1e9;
        for (String event : events.subList(0, warm)) {
            machine.rulesForJSONEvent(event);
        }
        start = System.nanoTime();
        StringBuilder matches = new StringBuilder();
        for (String event : events) {
            matches.append(String.join(" ", machine.rulesForJSONEvent(event))).append('\n');
        }
        double matching = (System.nanoTime() - start) / 1e9;
        try (PrintWriter out = new PrintWriter(arguments[2])) {
            out.print(matches);
        }
        System.out.println(loading + " " + matching);
    }
}
