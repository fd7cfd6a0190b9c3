// A search as one screen, JSON, CSV and Markdown. Computes nothing that the result does not hold but days and money.
#pragma once

#include <string>

#include "study/search.hpp"

namespace wt::study {

struct SearchQuestion {
  const JobSpec& job;
  size_t rows = 10;          // runners-up that are shown
  double price = 0;          // of a GPU-hour, in the user's money; 0: not asked
  double deadline_days = 0;  // 0: not asked
};

std::string print_search_screen(const SearchResult&, const SearchQuestion&);
std::string print_search_json(const SearchResult&, const SearchQuestion&);
std::string print_search_csv(const SearchResult&, const SearchQuestion&);
std::string print_search_markdown(const SearchResult&, const SearchQuestion&);

/// The fewest nodes whose fastest strategy ends within the deadline: index into outcomes. Nothing: none does.
std::optional<size_t> fewest_for(const SearchResult&, const JobSpec&, double deadline_days);

}  // namespace wt::study
