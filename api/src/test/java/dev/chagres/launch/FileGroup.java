package dev.chagres.launch;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** Processes of this host that pass texts to each other through files of a folder. */
record FileGroup(int rank, int count, Path folder) implements ProcessGroup {
    @Override
    public List<String> hosts() {
        return Collections.nCopies(count, "127.0.0.1");
    }

    @Override
    public int device() {
        return rank;
    }

    @Override
    public List<String> allGather(String text) {
        try {
            Path own = Files.writeString(folder.resolve("text" + rank + ".part"), text);
            Files.move(own, file(rank), StandardCopyOption.ATOMIC_MOVE);
            List<String> texts = new ArrayList<>();
            for (int other = 0; other < count; other++) {
                while (!Files.exists(file(other))) {
                    TimeUnit.MILLISECONDS.sleep(5);
                }
                texts.add(Files.readString(file(other)));
            }
            return texts;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private Path file(int other) {
        return folder.resolve("text" + other);
    }
}
