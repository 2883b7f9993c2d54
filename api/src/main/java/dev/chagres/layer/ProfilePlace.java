package dev.chagres.layer;

import dev.chagres.layer.PassObserver.Direction;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * What {@link PassProfile} has measured of a layer in one place: inside the same calls of other layers.
 *
 * <p>Threading: the device's thread.
 */
final class ProfilePlace {
    private static final double NANOS_PER_MILLI = 1e6;

    /** The sums of one direction. */
    private static final class Sums {
        private long calls;
        private double deviceMillis;
        private double hostNanos;

        private void clear() {
            calls = 0;
            deviceMillis = 0;
            hostNanos = 0;
        }

        private double deviceMean() {
            return calls == 0 ? 0 : deviceMillis / calls;
        }

        private double hostMean() {
            return calls == 0 ? 0 : hostNanos / calls / NANOS_PER_MILLI;
        }
    }

    final @Nullable Layer layer;
    private final int depth;
    private final List<ProfilePlace> inside = new ArrayList<>();
    private final Sums forward = new Sums();
    private final Sums backward = new Sums();
    private long keptBytes;

    ProfilePlace(@Nullable Layer layer, int depth) {
        this.layer = layer;
        this.depth = depth;
    }

    ProfilePlace inside(Layer wanted) {
        for (int i = 0; i < inside.size(); i++) {
            if (inside.get(i).layer == wanted) {
                return inside.get(i);
            }
        }
        ProfilePlace made = new ProfilePlace(wanted, depth + 1);
        inside.add(made);
        return made;
    }

    void add(Direction direction, double deviceMillis, long hostNanos) {
        Sums sums = sums(direction);
        sums.calls++;
        sums.deviceMillis += deviceMillis;
        sums.hostNanos += hostNanos;
    }

    void kept(long bytes) {
        keptBytes = Math.max(keptBytes, bytes);
    }

    private Sums sums(Direction direction) {
        return switch (direction) {
            case FORWARD -> forward;
            case BACKWARD -> backward;
        };
    }

    void addRows(List<PassProfile.Row> rows) {
        if (layer != null && forward.calls + backward.calls > 0) {
            rows.add(new PassProfile.Row(
                    layer.name(),
                    depth,
                    forward.calls,
                    backward.calls,
                    forward.deviceMean(),
                    backward.deviceMean(),
                    forward.hostMean(),
                    backward.hostMean(),
                    keptBytes));
        }
        inside.forEach(place -> place.addRows(rows));
    }

    void clear() {
        forward.clear();
        backward.clear();
        keptBytes = 0;
        inside.forEach(ProfilePlace::clear);
    }
}
