package dev.chagres.trainer.command;

import dev.chagres.io.AtomicFile;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.conf.ParquetConfiguration;
import org.apache.parquet.conf.PlainParquetConfiguration;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.api.WriteSupport;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;
import org.apache.parquet.io.OutputFile;
import org.apache.parquet.io.PositionOutputStream;
import org.apache.parquet.io.api.Binary;
import org.apache.parquet.io.api.RecordConsumer;
import org.apache.parquet.schema.LogicalTypeAnnotation;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.PrimitiveType.PrimitiveTypeName;
import org.apache.parquet.schema.Type;
import org.apache.parquet.schema.Types;

/**
 * A file of Parquet with a row for each embedding: {@code protein}, its number from 0; {@code id}; of residues {@code residue}, from 0; and
 * {@code embedding}, a list of floats. It has its name once it is whole.
 *
 * <p>The library is Apache Parquet for Java, with the few classes of Hadoop that {@code parquet-floor} has in place of Hadoop itself.
 *
 * <p>Threading: one thread at a time.
 */
final class EmbeddingParquet implements AutoCloseable {
    private final AtomicFile file;
    private final ParquetWriter<Row> writer;

    /**
     * A row.
     *
     * @param residue -1 where rows are of proteins
     * @param numbers holds the embedding from {@code from} on
     */
    record Row(long protein, String id, int residue, float[] numbers, int from, int columns) {}

    /** Opens a file that is to be. */
    EmbeddingParquet(Path path, EmbeddingFile.Rows rows) throws IOException {
        file = AtomicFile.create(path);
        try {
            writer = new Builder(new Target(file), rows == EmbeddingFile.Rows.TOKENS)
                    .withConf(new PlainParquetConfiguration())
                    .withCompressionCodec(CompressionCodecName.UNCOMPRESSED)
                    .withDictionaryEncoding("embedding.list.element", false)
                    .build();
        } catch (IOException | RuntimeException | Error failure) {
            file.close();
            throw failure;
        }
    }

    void add(Row row) throws IOException {
        writer.write(row);
    }

    /** Ends the file and gives it its name. */
    void publish() throws IOException {
        writer.close();
        file.publish();
    }

    /** Closes the file; without {@link #publish} before, it does not get its name. */
    @Override
    public void close() {
        file.close();
    }

    /** Where Parquet writes. */
    private record Target(AtomicFile file) implements OutputFile {
        @Override
        public PositionOutputStream create(long blockSizeHint) {
            return new Output(file);
        }

        @Override
        public PositionOutputStream createOrOverwrite(long blockSizeHint) {
            return new Output(file);
        }

        @Override
        public boolean supportsBlockSize() {
            return false;
        }

        @Override
        public long defaultBlockSize() {
            return 0;
        }
    }

    private static final class Output extends PositionOutputStream {
        private final AtomicFile file;
        private long position;

        Output(AtomicFile file) {
            this.file = file;
        }

        @Override
        public long getPos() {
            return position;
        }

        @Override
        public void write(int one) {
            write(new byte[] {(byte) one}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int from, int count) {
            file.append(Arrays.copyOfRange(bytes, from, from + count));
            position += count;
        }
    }

    @SuppressWarnings("deprecation") // Of two methods that do the same one is, and has to be there.
    private static final class Builder extends ParquetWriter.Builder<Row, Builder> {
        private final boolean ofResidues;

        Builder(OutputFile file, boolean ofResidues) {
            super(file);
            this.ofResidues = ofResidues;
        }

        @Override
        protected Builder self() {
            return this;
        }

        @Override
        protected WriteSupport<Row> getWriteSupport(Configuration unused) {
            return new Support(ofResidues);
        }

        @Override
        protected WriteSupport<Row> getWriteSupport(ParquetConfiguration unused) {
            return new Support(ofResidues);
        }
    }

    @SuppressWarnings({"deprecation", "NullAway.Init"}) // Parquet prepares it before the first row.
    private static final class Support extends WriteSupport<Row> {
        private final boolean ofResidues;
        private RecordConsumer to;

        Support(boolean ofResidues) {
            this.ofResidues = ofResidues;
        }

        @Override
        public WriteContext init(Configuration unused) {
            return context();
        }

        @Override
        public WriteContext init(ParquetConfiguration unused) {
            return context();
        }

        private WriteContext context() {
            Type list = Types.requiredList()
                    .requiredElement(PrimitiveTypeName.FLOAT)
                    .named("embedding");
            var fields = Types.buildMessage()
                    .required(PrimitiveTypeName.INT64)
                    .named("protein")
                    .required(PrimitiveTypeName.BINARY)
                    .as(LogicalTypeAnnotation.stringType())
                    .named("id");
            if (ofResidues) {
                fields = fields.required(PrimitiveTypeName.INT32).named("residue");
            }
            MessageType schema = fields.addField(list).named("embeddings");
            return new WriteContext(schema, Map.of());
        }

        @Override
        public void prepareForWrite(RecordConsumer consumer) {
            to = consumer;
        }

        @Override
        public void write(Row row) {
            to.startMessage();
            to.startField("protein", 0);
            to.addLong(row.protein());
            to.endField("protein", 0);
            to.startField("id", 1);
            to.addBinary(Binary.fromString(row.id()));
            to.endField("id", 1);
            if (ofResidues) {
                to.startField("residue", 2);
                to.addInteger(row.residue());
                to.endField("residue", 2);
            }
            int last = ofResidues ? 3 : 2;
            to.startField("embedding", last);
            to.startGroup();
            to.startField("list", 0);
            for (int i = 0; i < row.columns(); i++) {
                to.startGroup();
                to.startField("element", 0);
                to.addFloat(row.numbers()[row.from() + i]);
                to.endField("element", 0);
                to.endGroup();
            }
            to.endField("list", 0);
            to.endGroup();
            to.endField("embedding", last);
            to.endMessage();
        }
    }
}
