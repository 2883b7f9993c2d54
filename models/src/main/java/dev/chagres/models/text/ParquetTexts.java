package dev.chagres.models.text;

import dev.hardwood.InputFile;
import dev.hardwood.metadata.PhysicalType;
import dev.hardwood.reader.ParquetFileReader;
import dev.hardwood.reader.RowReader;
import dev.hardwood.schema.ColumnProjection;
import dev.hardwood.schema.ColumnSchema;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The rows of a Parquet file with a column {@code text}, or with {@code prompt} and {@code completion}.
 *
 * <p>The library is {@code dev.hardwood:hardwood-core} (Apache License 2.0), which a program names itself.
 *
 * <p>Threading: one thread at a time.
 */
final class ParquetTexts extends TextReader {
    private static final String TEXT = "text";
    private static final List<String> PAIR = List.of("prompt", "completion");

    private final ParquetFileReader reader;
    private final RowReader rows;
    private final boolean isPair;
    private long number;

    private ParquetTexts(Path file, ParquetFileReader reader, RowReader rows, boolean isPair) {
        super(file);
        this.reader = reader;
        this.rows = rows;
        this.isPair = isPair;
    }

    static TextReader open(Path file) {
        if (!Files.isRegularFile(file)) {
            throw new TextException(
                    file, Files.exists(file) ? "could not be read: it is no file" : "there is no such file", null);
        }
        try {
            return opened(file);
        } catch (NoClassDefFoundError missing) {
            throw new IllegalStateException(
                    "Parquet: expected the library dev.hardwood:hardwood-core, got none; add it to the program's"
                            + " dependencies",
                    missing);
        }
    }

    private static TextReader opened(Path file) {
        ParquetFileReader reader = null;
        try {
            reader = ParquetFileReader.open(InputFile.of(file));
            List<String> columns = reader.getFileSchema().getColumns().stream()
                    .filter(column -> column.maxRepetitionLevel() == 0 && column.type() == PhysicalType.BYTE_ARRAY)
                    .map(ColumnSchema::fieldPath)
                    .map(Object::toString)
                    .toList();
            boolean isPair = !columns.contains(TEXT);
            if (isPair && !columns.containsAll(PAIR)) {
                throw new TextException(
                        file,
                        "expected a column of strings text, or prompt and completion, got "
                                + reader.getFileSchema().getColumns().stream()
                                        .map(ColumnSchema::name)
                                        .toList(),
                        null);
            }
            RowReader rows = reader.buildRowReader()
                    .projection(ColumnProjection.columns(isPair ? PAIR.toArray(String[]::new) : new String[] {TEXT}))
                    .build();
            return new ParquetTexts(file, reader, rows, isPair);
        } catch (IOException | RuntimeException failure) {
            if (reader != null) {
                closeFile(file, reader);
            }
            throw failure instanceof TextException told ? told : damaged(file, failure);
        }
    }

    private static TextException damaged(Path file, Exception failure) {
        return new TextException(file, "expected a Parquet file: " + failure, failure);
    }

    private static void closeFile(Path file, ParquetFileReader reader) {
        try {
            reader.close();
        } catch (IOException failure) {
            throw unreadable(file, failure);
        }
    }

    @Override
    @Nullable
    Text next() {
        number++;
        try {
            if (!rows.hasNext()) {
                return null;
            }
            rows.next();
            return isPair
                    ? text(number, null, string("prompt"), string("completion"))
                    : text(number, string(TEXT), null, null);
        } catch (TextException told) {
            throw told;
        } catch (RuntimeException failure) {
            throw new TextException(file(), number, "could not be read: " + failure, failure);
        } catch (NoClassDefFoundError missing) { // the library of a compression
            throw new TextException(
                    file(), number, "could not be read, for a library is missing: " + missing.getMessage(), missing);
        }
    }

    private @Nullable String string(String column) {
        return rows.isNull(column) ? null : rows.getString(column);
    }

    @Override
    public void close() {
        rows.close();
        closeFile(file(), reader);
    }
}
