package dev.chagres.checkpoint;

import dev.chagres.internal.memory.BackgroundReads;
import dev.chagres.internal.memory.Closing;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.io.SafetensorsException;
import dev.chagres.parameter.Parameters;
import java.io.IOException;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Future;
import org.jspecify.annotations.Nullable;

/**
 * A checkpoint that a thread writes while training goes on, and that is published later.
 *
 * <p>First weights and the optimizer's state are copied to the host: the next optimizer step waits until they are, and so do the launch of a
 * graph, loading, and whatever frees memory of the device. Then the files are written. {@link #publish} waits for both, and gives the
 * checkpoint its name; a loop that does not want to wait asks {@link #isBusy} of each rank between its steps and calls {@link #advance}
 * once none is.
 *
 * <p>Until the copies are done, change weights by nothing but an optimizer's step; {@link #awaitRead} waits for that. One that is never
 * published leaves nothing but a hidden folder, which the next save removes; a later save of the same parameters publishes it first.
 *
 * {@snippet file="dev/chagres/checkpoint/PendingCheckpointTest.java" region="pending"}
 *
 * <p>Threading: the device's thread; {@link #isBusy}: any thread.
 */
public final class PendingCheckpoint implements AutoCloseable {
    private enum Phase {
        WRITING,
        PUBLISHING,
        PUBLISHED,
        GIVEN_UP
    }

    /** The last one of each model on a device, which gives up with the device what is under way. */
    static final class OfDevice implements AutoCloseable {
        private static final DeviceState.Attachment<OfDevice> ATTACHMENT =
                new DeviceState.Attachment<>(_ -> new OfDevice());

        private final Map<Parameters, PendingCheckpoint> all = new HashMap<>();

        private OfDevice() {}

        static OfDevice of(DeviceState device) {
            return device.get(ATTACHMENT);
        }

        /** Publishes the one that is under way, if there is one: every rank has it. */
        void finish(Parameters parameters) {
            PendingCheckpoint last = all.remove(parameters);
            if (last != null && !last.isOver()) {
                last.publish();
            }
        }

        void add(Parameters parameters, PendingCheckpoint begun) {
            all.put(parameters, begun);
        }

        @Override
        public void close() {
            Closing.newestFirst(List.copyOf(all.values()));
        }
    }

    /** What gives the folder its name, on the root. */
    interface Publication {
        void run(int... sums);
    }

    private final RankAccord accord;
    private final DeviceState device;
    private final CheckpointFolder run;
    private final Path folder;
    private final BackgroundReads.Reading reading;
    private final int[] sums;
    private final Publication publication;
    /** Whether the run's folder is to be released at the end. */
    private final boolean releases;

    private Phase phase = Phase.WRITING;
    private @Nullable Future<?> named;

    /** Those of the root publish {@code folder} by {@code publication}, given the checksums that {@code reading} leaves in {@code sums}. */
    PendingCheckpoint(
            RankAccord accord,
            DeviceState device,
            CheckpointFolder run,
            Path folder,
            boolean releases,
            BackgroundReads.Reading reading,
            Publication publication,
            int... sums) {
        this.accord = accord;
        this.device = device;
        this.run = run;
        this.folder = folder;
        this.releases = releases;
        this.reading = reading;
        this.publication = publication;
        this.sums = sums;
    }

    /** Waits until this rank's weights and optimizer state may change. */
    public void awaitRead() {
        reading.awaitRead();
    }

    /** Returns whether {@link #advance} would wait for this rank. */
    public boolean isBusy() {
        Future<?> last = named;
        return phase == Phase.WRITING && !reading.isDone()
                || phase == Phase.PUBLISHING && last != null && !last.isDone();
    }

    /** Returns whether nothing is left to do: it was published, has failed or was given up. */
    public boolean isOver() {
        return phase == Phase.PUBLISHED || phase == Phase.GIVEN_UP;
    }

    /**
     * Goes on once every rank has done what it is busy with; every rank calls it and waits.
     *
     * @return whether it is published; else there is more to do
     * @throws SafetensorsException on every rank, when the checkpoint could not be written; nothing is published then
     * @throws IllegalStateException after {@link #close}
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public boolean advance() {
        if (phase == Phase.PUBLISHED) {
            return true;
        }
        if (phase == Phase.GIVEN_UP) {
            throw new IllegalStateException("advance: expected a checkpoint that can be published, got " + this);
        }
        boolean done = false;
        try {
            if (phase == Phase.WRITING) {
                accord.together(() -> await(folder, reading::await));
                int[] all = combined();
                if (isRoot()) {
                    named = BackgroundReads.of(device).submit(() -> {
                        publication.run(all);
                        return true;
                    });
                }
                phase = Phase.PUBLISHING;
            } else {
                Future<?> last = named;
                if (last == null) {
                    accord.together(() -> {});
                } else {
                    accord.together(() -> await(run.path(), () -> BackgroundReads.result(last)));
                }
                phase = Phase.PUBLISHED;
                release();
            }
            done = true;
        } finally {
            if (!done) {
                close();
            }
        }
        return phase == Phase.PUBLISHED;
    }

    /**
     * Waits until it is published; every rank calls it. A second call does nothing.
     *
     * @throws SafetensorsException as {@link #advance}
     * @throws IllegalStateException as {@link #advance}
     * @throws dev.chagres.nccl.RankFailedException as {@link #advance}
     */
    public void publish() {
        while (!advance()) {
            // Advancing is all.
        }
    }

    private interface Waiting {
        void run() throws IOException;
    }

    private static void await(Path file, Waiting waiting) {
        try {
            waiting.run();
        } catch (IOException failure) {
            throw FolderWriter.unwritable(file, failure);
        }
    }

    private boolean isRoot() {
        return accord.rank() == StateTensor.ROOT;
    }

    /** Each rank has contributed to the sums of blocks what it has written there. */
    private int[] combined() {
        long[] mine = new long[sums.length];
        for (int i = 0; i < sums.length; i++) {
            mine[i] = sums[i];
        }
        long[] all = accord.gather(mine);
        int[] combined = new int[sums.length];
        for (int i = 0; i < all.length; i++) {
            combined[i % sums.length] ^= (int) all[i];
        }
        return combined;
    }

    private void release() {
        if (isRoot() && releases) {
            run.close();
        }
    }

    /** Gives it up unless it is published: waits for the thread of this rank, and removes what was written. A second call does nothing. */
    @Override
    public void close() {
        if (isOver()) {
            return;
        }
        phase = Phase.GIVEN_UP;
        boolean whole = false;
        try {
            reading.await();
            if (named != null) {
                BackgroundReads.result(named);
                whole = true;
            }
        } catch (IOException | RuntimeException known) {
            // Nothing is published: whoever has called advance was told why.
        }
        if (isRoot()) {
            if (!whole) {
                FolderWriter.discard(run, folder);
            }
            release();
        }
    }

    /** Returns where it is written, and how far it is. */
    @Override
    public String toString() {
        return "checkpoint in " + folder + ", "
                + phase.name().toLowerCase(Locale.ROOT).replace('_', ' ');
    }
}
