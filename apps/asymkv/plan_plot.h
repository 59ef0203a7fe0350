#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace asymkv::app {

struct PlotSeries {
  std::string label;  // written at the line's end
  bool dashed = false;
  std::vector<std::pair<double, double>> points;  // x ascending, all positive
};

// Lines on two logarithmic axes: powers of two across, of ten up.
struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotSeries> series;
};

// Draws on white into an .svg or .png file, in colours that colour-blind readers tell apart (Okabe and Ito). Throws
// Error{kUsage} if there is not a single point, Error{kResourceExhausted} if the file cannot be written.
void write_plot(const Plot& plot, const std::filesystem::path& path);

}  // namespace asymkv::app
