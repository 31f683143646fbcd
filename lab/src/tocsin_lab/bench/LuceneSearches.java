import java.io.BufferedReader;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.TextField;
import org.apache.lucene.index.Term;
import org.apache.lucene.monitor.Monitor;
import org.apache.lucene.monitor.MonitorQuery;
import org.apache.lucene.monitor.QueryMatch;
import org.apache.lucene.search.BooleanClause.Occur;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.TermQuery;

/** Searches and documents, a line each, in; how many searches fit each document, and the time, out. */
public class LuceneSearches {
    private static final int TOGETHER = 10_000;

    /** Arguments: the searches, the documents, how many of these are not timed, repeats. */
    public static void main(String[] args) throws Exception {
        List<String> documents = Files.readAllLines(Path.of(args[1]));
        int first = Integer.parseInt(args[2]);
        try (Monitor monitor = new Monitor(new StandardAnalyzer())) {
            register(monitor, Path.of(args[0]));
            StringBuilder counts = new StringBuilder();
            for (String document : documents) {
                counts.append(count(monitor, document)).append(' ');
            }
            System.out.println(counts);
            for (int repeat = 0; repeat < Integer.parseInt(args[3]); repeat++) {
                long began = System.nanoTime();
                long beganCpu = cpuTime();
                for (String document : documents.subList(first, documents.size())) {
                    count(monitor, document);
                }
                double wall = (System.nanoTime() - began) / 1e9;
                System.out.println(wall + " " + (cpuTime() - beganCpu) / 1e9);
            }
        }
    }

    private static long cpuTime() {
        return ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
    }

    private static void register(Monitor monitor, Path searches) throws Exception {
        List<MonitorQuery> queries = new ArrayList<>();
        try (BufferedReader lines = Files.newBufferedReader(searches)) {
            int number = 0;
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                BooleanQuery.Builder query = new BooleanQuery.Builder();
                for (String word : line.split(" ")) {
                    query.add(new TermQuery(new Term("body", word)), Occur.MUST);
                }
                queries.add(new MonitorQuery(Integer.toString(number++), query.build()));
                if (queries.size() == TOGETHER) {
                    monitor.register(queries);
                    queries.clear();
                }
            }
        }
        monitor.register(queries);
    }

    private static int count(Monitor monitor, String body) throws Exception {
        Document document = new Document();
        document.add(new TextField("body", body, Field.Store.NO));
        return monitor.match(document, QueryMatch.SIMPLE_MATCHER).getMatchCount();
    }
}
