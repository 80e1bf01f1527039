// SPDX-License-Identifier: MIT OR Apache-2.0
// A vehicle-scheduling problem, solved by LEMON's network simplex (Debian: liblemon-dev).
//
//   vehicles TRIPS ARCS [SEED]
//
// The problem is that of SPEC's mcf (Löbel 1996): a timetable of TRIPS trips, each of which one
// vehicle drives, at the least cost. Its network has two nodes a trip, one where vehicles are
// wanted (its start) and one where they come from (its end), and a depot; arcs lead from the depot
// to each start, from each end to the depot, and from each end to the starts of later trips that
// the vehicle can reach in time, ARCS of them a trip at most, the earliest first. Trips are
// numbered by their start. Start and end lie at random in a square; a day has 20 hours.
//
// mark 1: the network is read, and solving begins.

#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include <lemon/network_simplex.h>
#include <lemon/smart_graph.h>

namespace {

struct Trip {
    int start, end;                          // minutes
    float start_x, start_y, end_x, end_y;    // minutes of driving
};

constexpr int DAY = 20 * 60;
constexpr int SIDE = 60;
constexpr int VEHICLE = 10000; // a vehicle's cost, which outweighs any driving

int drive(const Trip &from, const Trip &to) {
    return static_cast<int>(std::hypot(from.end_x - to.start_x, from.end_y - to.start_y));
}

std::vector<Trip> timetable(int count, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> place(0, SIDE);
    std::uniform_int_distribution<int> start(0, DAY - 1), takes(20, 60);
    std::vector<Trip> trips(count);
    for (Trip &trip : trips) {
        trip.start = start(random);
        trip.end = trip.start + takes(random);
        trip = {trip.start, trip.end, place(random), place(random), place(random), place(random)};
    }
    std::sort(trips.begin(), trips.end(), [](const Trip &a, const Trip &b) { return a.start < b.start; });
    return trips;
}

} // namespace

int main(int argc, char **argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: vehicles TRIPS ARCS [SEED]\n");
        return 2;
    }
    const int count = std::atoi(argv[1]), most = std::atoi(argv[2]);
    const std::vector<Trip> trips = timetable(count, argc > 3 ? std::atoi(argv[3]) : 1);

    using Graph = lemon::SmartDigraph;
    Graph graph;
    graph.reserveNode(2 * count + 1);
    graph.reserveArc(count * (most + 2));
    for (int node = 0; node <= 2 * count; ++node) graph.addNode();
    const auto start = [&](int trip) { return graph.nodeFromId(trip); };
    const auto end = [&](int trip) { return graph.nodeFromId(count + trip); };
    const Graph::Node depot = graph.nodeFromId(2 * count);
    std::vector<int> costs;
    const auto add = [&](Graph::Node from, Graph::Node to, int cost) {
        graph.addArc(from, to);
        costs.push_back(cost);
    };
    for (int trip = 0; trip < count; ++trip) {
        add(depot, start(trip), VEHICLE);
        add(end(trip), depot, 0);
    }
    for (int from = 0; from < count; ++from) {
        const auto later = std::lower_bound(trips.begin(), trips.end(), trips[from].end,
                                            [](const Trip &trip, int time) { return trip.start < time; });
        int arcs = 0;
        for (int to = static_cast<int>(later - trips.begin()); to < count && arcs < most; ++to) {
            const int driving = drive(trips[from], trips[to]);
            const int spare = trips[to].start - trips[from].end;
            if (driving > spare) continue;
            add(end(from), start(to), 2 * driving + spare);
            ++arcs;
        }
    }
    std::printf("%d nodes, %zu arcs\n", graph.nodeNum(), costs.size());

    Graph::ArcMap<int> cost(graph);
    for (int arc = 0; arc < graph.arcNum(); ++arc) cost[graph.arcFromId(arc)] = costs[arc];
    costs = {};
    Graph::NodeMap<int> supply(graph, 0);
    for (int trip = 0; trip < count; ++trip) {
        supply[start(trip)] = -1;
        supply[end(trip)] = 1;
    }
    lemon::NetworkSimplex<Graph, int, long> simplex(graph);
    simplex.costMap(cost).supplyMap(supply);
    std::fflush(stdout);
    prctl(0x4e574d4b, 1, 0, 0, 0);
    const bool optimal = simplex.run() == lemon::NetworkSimplex<Graph, int, long>::OPTIMAL;
    std::printf("%s, cost %ld\n", optimal ? "optimal" : "not solved", optimal ? simplex.totalCost<long>() : 0);
    return optimal ? 0 : 1;
}
