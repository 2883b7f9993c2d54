package dev.chagres.spark;

import dev.chagres.bindings.ForeignText;
import dev.chagres.models.data.FastaReader;
import dev.chagres.models.data.FastaSource;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.lib.input.TextInputFormat;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;

/**
 * FASTA files as an RDD of their sequences.
 *
 * <p>Threading: thread-safe.
 */
final class FastaRecords {
    private static final String DELIMITER = "textinputformat.record.delimiter";
    private static final int SHOWN = 40;

    private FastaRecords() {}

    /**
     * Returns the sequences of files, in upper case; nothing is read yet. A record that cannot be used fails the job with a {@link
     * dev.chagres.models.data.FastaException}.
     *
     * @param path as Spark takes it: files, folders and patterns of any file system that it knows, plain or gz
     */
    static JavaRDD<String> read(JavaSparkContext spark, String path) {
        var configuration = new Configuration(spark.hadoopConfiguration());
        configuration.set(DELIMITER, "\n>");
        return spark.newAPIHadoopFile(path, TextInputFormat.class, LongWritable.class, Text.class, configuration)
                .values()
                .map(Text::toString)
                .filter(record -> !record.isBlank())
                .map(record -> sequence(path, record));
    }

    /** Returns the sequence of what stands between two delimiters. */
    static String sequence(String path, String record) {
        String whole = record.startsWith(">") ? record : ">" + record;
        String header = whole.lines().findFirst().orElse(whole);
        String name = ForeignText.plain(
                path + ", record " + (header.length() > SHOWN ? header.substring(0, SHOWN) + "…" : header));
        try (FastaReader reader = FastaSource.of(name, whole.getBytes(StandardCharsets.ISO_8859_1))
                .open()) {
            reader.advance();
            String first = new String(reader.residues(), 0, reader.length(), StandardCharsets.ISO_8859_1);
            if (reader.advance()) {
                throw new IllegalArgumentException(
                        name + ": expected lines that end with LF or CRLF, which records are told"
                                + " apart by, got several records between two of them; convert the file, for instance by tr '\\r' '\\n'");
            }
            return first;
        }
    }

    /** Returns the sequences that travel with the models. */
    static JavaRDD<String> shipped(JavaSparkContext spark, int partitions) {
        var sequences = new ArrayList<String>();
        try (FastaReader reader = FastaSource.shipped().open()) {
            while (reader.advance()) {
                sequences.add(new String(reader.residues(), 0, reader.length(), StandardCharsets.ISO_8859_1));
            }
        }
        return spark.parallelize(sequences, partitions);
    }
}
